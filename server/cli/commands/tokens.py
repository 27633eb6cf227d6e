"""The commands `token add`, `token list` and `token revoke`."""

import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.cli.arguments import CommandParser, read_settings
from planwarden.server.cli.home import use_store
from planwarden.server.cli.output import DONE, format_time, print_json
from planwarden.server.cli.terminal.terminal import Terminal, write_result
from planwarden.storage.opening import CompleteStore
from planwarden.storage.tokens import TokenRow, TokenStore


def add_token(parser: CommandParser) -> None:
    add = parser.add_command("add", handle_add, "Make a token and show it once.")
    add.declare("name NAME", "its principal, who owns everything that is done with the token")
    add.declare("--days N", "valid for N days; default: until it is revoked", type=int)
    text = "caller: for MCP clients, the default; approver: for a person, and MCP refuses it"
    add.declare("--role", text, choices=("caller", "approver"), default="caller")
    parser.add_command("list", handle_list, "List tokens, without their secrets.")
    revoke = parser.add_command("revoke", handle_revoke, "End a token, or all tokens of a name.")
    revoke.declare("name TOKEN", "a name, for all of its tokens, or the id of one token")


def handle_add(arguments: Namespace) -> int:
    token, row = use_store(
        read_settings(arguments),
        lambda store: TokenStore(store).make(arguments.name, role=arguments.role, days=arguments.days),
    )
    if arguments.json:
        print_json({**_to_json(row, row.created_at), "token": token})
        return DONE
    # Only the token goes to standard output, so that a script can read it.
    print(f"token {row.token_id} of {row.principal}; it is shown only now and is not stored:", file=sys.stderr)
    print(token)
    return DONE


def handle_list(arguments: Namespace) -> int:
    rows, now = _use_tokens(arguments, TokenStore.all)
    return write_result(arguments, {"tokens": [_to_json(row, now) for row in rows]}, draw_tokens, rows, now)


def handle_revoke(arguments: Namespace) -> int:
    name: str = arguments.name
    rows, now = _use_tokens(arguments, lambda tokens: tokens.revoke(name))
    if not rows:
        raise InvalidArguments(f"no token with name or id {name[:64]!r} can be revoked; see `planwarden token list`")
    text = f"revoked: {', '.join(row.token_id for row in rows)}"
    return write_result(arguments, {"revoked": [_to_json(row, now) for row in rows]}, Terminal.say, text)


def _use_tokens(
    arguments: Namespace, use: Callable[[TokenStore], Awaitable[tuple[TokenRow, ...]]]
) -> tuple[tuple[TokenRow, ...], float]:
    """Return the tokens that `use` returns, and the time. A missing database has no tokens, and is not created."""

    async def work(store: CompleteStore) -> tuple[tuple[TokenRow, ...], float]:
        return await use(TokenStore(store)), store.clock.now()

    settings = read_settings(arguments)
    return use_store(settings, work) if settings.store.is_made else ((), 0.0)


def draw_tokens(terminal: Terminal, rows: tuple[TokenRow, ...], now: float) -> None:
    if not rows:
        terminal.say("No tokens; `planwarden token add NAME` makes one.")
    for row in rows:
        until = f", until {format_time(row.expires_at)}" if row.expires_at is not None else ""
        creation = f"made {format_time(row.created_at)}"
        terminal.say(f"{row.token_id}  {row.principal}  {row.role}  {_state(row, now)}{until}  {creation}")


def _to_json(row: TokenRow, now: float) -> dict[str, JsonValue]:
    return {
        "tokenId": row.token_id,
        "principal": row.principal,
        "role": row.role,
        "state": _state(row, now),
        "createdAt": format_time(row.created_at),
        "expiresAt": format_time(row.expires_at),
        "revokedAt": format_time(row.revoked_at),
    }


def _state(row: TokenRow, now: float) -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "valid" if row.is_valid(now) else "expired"

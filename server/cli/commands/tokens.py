"""The commands `token add`, `token list` and `token revoke`."""

import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.cli.arguments import read_settings
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, print_json, write_result
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.instants import format_instant, to_utc
from planwarden.storage.opening import open_store
from planwarden.storage.tokens import Role, TokenRow, TokenStore

Result = TypeVar("Result")


def add_token_commands(parser: CommandParser) -> None:
    commands = parser.add_commands("add|list|revoke")
    add = commands.add("add", handle_add, "Make a token and show it once.")
    add.add_argument("name", metavar="NAME", help="its principal, who owns everything that is done with the token")
    add.add_argument("--days", type=int, metavar="N", help="valid for N days; default: until it is revoked")
    add.add_argument(
        "--role",
        choices=("caller", "approver"),
        default="caller",
        help="caller: for MCP clients, the default; approver: for a person, and MCP refuses it",
    )
    commands.add("list", handle_list, "List tokens, without their secrets.")
    revoke = commands.add("revoke", handle_revoke, "End a token, or all tokens of a name.")
    revoke.add_argument("name", metavar="TOKEN", help="a name, for all of its tokens, or the id of one token")


def handle_add(arguments: Namespace) -> int:
    token, row = add_token(read_settings(arguments), arguments.name, role=arguments.role, days=arguments.days)
    if arguments.json:
        print_json({**row_json(row, row.created_at), "token": token})
        return DONE
    # Only the token goes to standard output, so that a script can read it.
    print(f"token {row.token_id} of {row.principal}; it is shown only now and is not stored:", file=sys.stderr)
    print(token)
    return DONE


def handle_list(arguments: Namespace) -> int:
    rows, now = list_tokens(read_settings(arguments))
    write_result(
        arguments,
        {"tokens": [row_json(row, now) for row in rows]},
        lambda terminal: draw_tokens(terminal, rows, now),
    )
    return DONE


def handle_revoke(arguments: Namespace) -> int:
    rows, now = revoke_tokens(read_settings(arguments), arguments.name)
    write_result(
        arguments,
        {"revoked": [row_json(row, now) for row in rows]},
        lambda terminal: terminal.say(f"revoked: {', '.join(row.token_id for row in rows)}"),
    )
    return DONE


def add_token(settings: Settings, name: str, *, role: Role, days: int | None) -> tuple[str, TokenRow]:
    """Make a token, and store its hash only. Return the token and its row. Raise `InvalidArguments`."""
    return _with_tokens(settings, lambda tokens: tokens.make(name, role=role, days=days))


def list_tokens(settings: Settings) -> tuple[tuple[TokenRow, ...], float]:
    """Return every token, also expired and revoked ones, oldest first, and the time now in seconds since 1970."""

    async def read(tokens: TokenStore) -> tuple[tuple[TokenRow, ...], float]:
        return await tokens.all(), tokens.clock.now()

    # A command that only reads must not create a database.
    return _with_tokens(settings, read) if settings.store.is_made else ((), 0.0)


def revoke_tokens(settings: Settings, name: str) -> tuple[tuple[TokenRow, ...], float]:
    """Revoke the token with this id, or all tokens of this principal. Returns them, and the time now.

    Raises:
        InvalidArguments: there is no such token.
    """

    async def revoke(tokens: TokenStore) -> tuple[tuple[TokenRow, ...], float]:
        return await tokens.revoke(name), tokens.clock.now()

    rows, now = _with_tokens(settings, revoke) if settings.store.is_made else ((), 0.0)
    if not rows:
        raise InvalidArguments(f"there is no token of, or called, {name[:64]!r} to revoke; see `planwarden token list`")
    return rows, now


def draw_tokens(terminal: Terminal, rows: tuple[TokenRow, ...], now: float) -> None:
    if not rows:
        terminal.say("No tokens; `planwarden token add NAME` makes one.")
    for row in rows:
        until = f", until {_format_time(row.expires_at)}" if row.expires_at is not None else ""
        creation = f"made {_format_time(row.created_at)}"
        terminal.say(f"{row.token_id}  {row.principal}  {row.role}  {_state(row, now)}{until}  {creation}")


def row_json(row: TokenRow, now: float) -> dict[str, JsonValue]:
    return {
        "tokenId": row.token_id,
        "principal": row.principal,
        "role": row.role,
        "state": _state(row, now),
        "createdAt": _format_time(row.created_at),
        "expiresAt": _format_time(row.expires_at),
        "revokedAt": _format_time(row.revoked_at),
    }


def _state(row: TokenRow, now: float) -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "valid" if row.is_valid(now) else "expired"


def _format_time(at: float | None) -> str | None:
    return None if at is None else format_instant(to_utc(at))


def _with_tokens(settings: Settings, work: Callable[[TokenStore], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with open_store(settings.store) as store:
            return await work(TokenStore(store))

    return anyio.run(run)

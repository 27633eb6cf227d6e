"""The commands `key`, for the keys with which people sign, and `token`, for the tokens of callers over HTTP."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.cli.arguments import read_settings
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.home import open_home, use_store
from planwarden.server.cli.output import DONE, format_time, print_json
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, write_result
from planwarden.server.settings.configuration import find_operator
from planwarden.server.signatures.keyring import Keyring
from planwarden.server.views.escaping import escape_text
from planwarden.storage.keys import SigningKey
from planwarden.storage.opening import CompleteStore
from planwarden.storage.sealing import make_secret_key
from planwarden.storage.tokens import TokenRow, TokenStore


def add_key(parser: CommandParser) -> None:
    parser.add_command("list", handle_list_keys, "List the keys of all people.")
    revoke = parser.add_command("revoke", handle_revoke_key, "End a key now, such as a lost one.", has_json=False)
    revoke.add_argument("key", metavar="KEY", help="id of the key, or the beginning of it")
    text = "Print a fresh key for PLANWARDEN_SECRET_KEY, which seals the secrets in PostgreSQL, and nothing else."
    parser.add_command("new-secret", handle_new_secret, text, has_json=False, needs_home=False)


def handle_list_keys(arguments: Namespace) -> int:
    keys = open_home(arguments).run(lambda service: Keyring(service.store).list_keys(), "reader")
    document: dict[str, JsonValue] = {
        "keys": [
            {
                "keyId": key.key_id,
                "principal": key.principal,
                "label": key.label,
                "rpId": key.rp_id,
                "createdAt": format_time(key.created_at, "milliseconds"),
                "usedAt": format_time(key.used_at, "milliseconds"),
                "revokedAt": format_time(key.revoked_at, "milliseconds"),
            }
            for key in keys
        ]
    }
    write_result(arguments, document, lambda terminal: draw_keys(terminal, keys))
    return DONE


def handle_revoke_key(arguments: Namespace) -> int:
    key = open_home(arguments).run(
        lambda service: Keyring(service.store).revoke_key(arguments.key, find_operator()), "recorder"
    )
    build_terminal(arguments).say(f"Key {key.key_id} of {escape_text(key.principal)} is revoked.")
    return DONE


def handle_new_secret(arguments: Namespace) -> int:
    # Nothing but the key goes to standard output, so that it can be sent into a file or a vault.
    print(make_secret_key())
    return DONE


def draw_keys(terminal: Terminal, keys: Sequence[SigningKey]) -> None:
    if not keys:
        terminal.say("No keys; people add theirs on the page Keys of the inbox.")
    for key in keys:
        state = "usable" if key.revoked_at is None else f"revoked {format_time(key.revoked_at)}"
        last = "never signed" if key.used_at is None else f"signed {format_time(key.used_at)}"
        terminal.say(
            TerminalLine(
                (key.key_id, "bold"),
                f"  {escape_text(key.principal)}  {escape_text(key.label)}  ",
                (state, "good" if key.revoked_at is None else "dim"),
                mark="done" if key.revoked_at is None else "waits",
            ),
            TerminalLine((f"for {key.rp_id} · added {format_time(key.created_at)} · {last}", "dim"), indent=1),
        )


def add_token(parser: CommandParser) -> None:
    add = parser.add_command("add", handle_add_token, "Make a token and show it once.")
    add.add_argument("name", metavar="NAME", help="its principal, who owns everything that is done with the token")
    add.add_argument("--days", type=int, metavar="N", help="valid for N days; default: until it is revoked")
    text = "caller: for MCP clients, the default; approver: for a person, and MCP refuses it"
    add.add_argument("--role", choices=("caller", "approver"), default="caller", help=text)
    parser.add_command("list", handle_list_tokens, "List tokens, without their secrets.")
    revoke = parser.add_command("revoke", handle_revoke_token, "End a token, or all tokens of a name.")
    revoke.add_argument("name", metavar="TOKEN", help="a name, for all of its tokens, or the id of one token")


def handle_add_token(arguments: Namespace) -> int:
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


def handle_list_tokens(arguments: Namespace) -> int:
    async def read(store: CompleteStore) -> tuple[tuple[TokenRow, ...], float]:
        return await TokenStore(store).all(), store.clock.now()

    settings = read_settings(arguments)
    # A command that only reads must not create a database.
    rows, now = use_store(settings, read) if settings.store.is_made else ((), 0.0)
    document: dict[str, JsonValue] = {"tokens": [_to_json(row, now) for row in rows]}
    write_result(arguments, document, lambda terminal: draw_tokens(terminal, rows, now))
    return DONE


def handle_revoke_token(arguments: Namespace) -> int:
    name: str = arguments.name

    async def revoke(store: CompleteStore) -> tuple[tuple[TokenRow, ...], float]:
        return await TokenStore(store).revoke(name), store.clock.now()

    settings = read_settings(arguments)
    rows, now = use_store(settings, revoke) if settings.store.is_made else ((), 0.0)
    if not rows:
        raise InvalidArguments(f"there is no token of, or called, {name[:64]!r} to revoke; see `planwarden token list`")
    text = f"revoked: {', '.join(row.token_id for row in rows)}"
    write_result(arguments, {"revoked": [_to_json(row, now) for row in rows]}, lambda terminal: terminal.say(text))
    return DONE


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

"""The commands `key list` and `key revoke`, for keys that people add in the inbox, and `key new-secret`."""

from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from planwarden.agent.common.struct import copy_fields
from planwarden.server.cli.arguments import open_home
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, build_terminal, write_result
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.configuration import find_operator
from planwarden.server.signatures.keyring import Keyring
from planwarden.server.views.encoding import to_json
from planwarden.server.views.escaping import escape_text
from planwarden.server.views.instants import format_instant
from planwarden.storage.keys import SigningKey
from planwarden.storage.sealing import make_secret_key


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key as people and programs see it."""

    key_id: str
    principal: str
    label: str
    rp_id: str
    """Name of the host at which the key works."""
    created_at: datetime
    used_at: datetime | None
    revoked_at: datetime | None


def add_key_commands(parser: CommandParser) -> None:
    commands = parser.add_commands("list|revoke|new-secret")
    commands.add("list", handle_list, "List the keys of all people.")
    revoke = commands.add("revoke", handle_revoke, "End a key now, such as a lost one.", has_json=False)
    revoke.add_argument("key", metavar="KEY", help="id of the key, or the beginning of it")
    text = "Print a fresh key for PLANWARDEN_SECRET_KEY, which seals the secrets in PostgreSQL, and nothing else."
    commands.add("new-secret", handle_new_secret, text, has_json=False, needs_home=False)


def handle_list(arguments: Namespace) -> int:
    stored = open_home(arguments).run(lambda service: Keyring(service.store).list_keys(), "reader")
    keys = tuple(map(_build_view, stored))
    write_result(arguments, {"keys": [to_json(key) for key in keys]}, lambda terminal: draw_keys(terminal, keys))
    return DONE


def handle_revoke(arguments: Namespace) -> int:
    key = open_home(arguments).run(
        lambda service: Keyring(service.store).revoke_key(arguments.key, find_operator()), "recorder"
    )
    build_terminal(arguments).say(f"Key {key.key_id} of {escape_text(key.principal)} is revoked.")
    return DONE


def handle_new_secret(arguments: Namespace) -> int:
    """Nothing but the key goes to standard output, so that it can be sent into a file or a vault."""
    print(make_secret_key())
    return DONE


def draw_keys(terminal: Terminal, keys: Sequence[KeyView]) -> None:
    if not keys:
        terminal.say("No keys; people add theirs on the page Keys of the inbox.")
    for key in keys:
        state = "usable" if key.revoked_at is None else f"revoked {format_instant(key.revoked_at)}"
        last = "never signed" if key.used_at is None else f"signed {format_instant(key.used_at)}"
        terminal.say(
            TerminalLine(
                (
                    (key.key_id, "bold"),
                    f"  {escape_text(key.principal)}  {escape_text(key.label)}  ",
                    (state, "good" if key.revoked_at is None else "dim"),
                ),
                "done" if key.revoked_at is None else "waits",
            ),
            TerminalLine(((f"for {key.rp_id} · added {format_instant(key.created_at)} · {last}", "dim"),), indent=1),
        )


def _build_view(key: SigningKey) -> KeyView:
    return copy_fields(
        KeyView,
        key,
        created_at=datetime.fromtimestamp(key.created_at, UTC),
        used_at=None if key.used_at is None else datetime.fromtimestamp(key.used_at, UTC),
        revoked_at=None if key.revoked_at is None else datetime.fromtimestamp(key.revoked_at, UTC),
    )

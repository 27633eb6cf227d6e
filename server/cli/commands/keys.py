"""The commands `key list` and `key revoke`, for keys that people add in the inbox, and `key new-secret`."""

from argparse import Namespace
from collections.abc import Sequence

from pydantic import JsonValue

from planwarden.server.cli.arguments import CommandParser
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import DONE, format_time
from planwarden.server.cli.terminal.terminal import Terminal, build_terminal, write_result
from planwarden.server.settings.configuration import find_operator
from planwarden.server.signatures.keyring import Keyring
from planwarden.server.views.escaping import escape_text
from planwarden.storage.keys import SigningKey
from planwarden.storage.sealing import make_secret_key


def add_key(parser: CommandParser) -> None:
    parser.add_command("list", handle_list, "List the keys of all people.")
    revoke = parser.add_command("revoke", handle_revoke, "End a key now, such as a lost one.", has_json=False)
    revoke.declare("key KEY", "id of the key, or the beginning of it")
    text = "Print only a fresh key for PLANWARDEN_SECRET_KEY, which seals the secrets in PostgreSQL."
    parser.add_command("new-secret", handle_new_secret, text, has_json=False, needs_home=False)


def handle_list(arguments: Namespace) -> int:
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
    return write_result(arguments, document, draw_keys, keys)


def handle_revoke(arguments: Namespace) -> int:
    key = open_home(arguments).run(
        lambda service: Keyring(service.store).revoke_key(arguments.key, find_operator()), "recorder"
    )
    build_terminal(arguments).say(f"Key {key.key_id} of {escape_text(key.principal)} is revoked.")
    return DONE


def handle_new_secret(arguments: Namespace) -> int:
    # Only the key goes to standard output, so that the output can be sent into a file or a vault.
    print(make_secret_key())
    return DONE


def draw_keys(terminal: Terminal, keys: Sequence[SigningKey]) -> None:
    if not keys:
        terminal.say("No keys; people add theirs on the page Keys of the inbox.")
    for key in keys:
        state = "usable" if key.revoked_at is None else f"revoked {format_time(key.revoked_at)}"
        last = "never signed" if key.used_at is None else f"signed {format_time(key.used_at)}"
        terminal.line(
            (key.key_id, "bold"),
            f"  {escape_text(key.principal)}  {escape_text(key.label)}  ",
            (state, "good" if key.revoked_at is None else "dim"),
            mark="done" if key.revoked_at is None else "waits",
        )
        terminal.line((f"for {key.rp_id} · added {format_time(key.created_at)} · {last}", "dim"), indent=1)

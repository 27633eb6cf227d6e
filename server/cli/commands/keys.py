"""The commands `key list` and `key revoke`: whose keys there are, and the end of one that was lost. Keys are added in the inbox."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio

from planwarden.server.cli.home import CliHome
from planwarden.server.cli.terminal.lines import TerminalLine
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.settings.configuration import operator
from planwarden.server.signatures.keyring import Keyring
from planwarden.server.views.facts import escape_text
from planwarden.storage.ports.keys import SigningKey


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """A key as people and programs see it."""

    key_id: str
    principal: str
    label: str
    rp_id: str
    """Name of the host at which it can be used."""
    created_at: datetime
    used_at: datetime | None
    revoked_at: datetime | None


def list_keys(home: CliHome) -> tuple[KeyView, ...]:
    """Everybody's, revoked ones included, oldest first."""

    async def work() -> tuple[KeyView, ...]:
        async with home.looking() as service:
            return tuple(map(_view, await Keyring(service.engine.store).all()))

    return anyio.run(work)


def revoke_key(home: CliHome, key: str) -> KeyView:
    """End a key by its id or the beginning of it. Raises `UsageError` when that is not one living key."""

    async def work() -> KeyView:
        async with home.acting(follows=False) as service:
            return _view(await Keyring(service.engine.store).revoke(key, operator()))

    return anyio.run(work)


def draw_keys(terminal: Terminal, keys: Sequence[KeyView]) -> None:
    if not keys:
        terminal.say("No keys; people add theirs on the page Keys of the inbox.")
    for key in keys:
        state = "usable" if key.revoked_at is None else f"revoked {_date(key.revoked_at)}"
        last = "never signed" if key.used_at is None else f"signed {_date(key.used_at)}"
        terminal.say(
            TerminalLine(
                (
                    (key.key_id, "bold"),
                    f"  {escape_text(key.principal)}  {escape_text(key.label)}  ",
                    (state, "good" if key.revoked_at is None else "dim"),
                ),
                "done" if key.revoked_at is None else "waits",
            ),
            TerminalLine(((f"for {key.rp_id} · added {_date(key.created_at)} · {last}", "dim"),), indent=1),
        )


def _view(key: SigningKey) -> KeyView:
    return KeyView(
        key_id=key.key_id,
        principal=key.principal,
        label=key.label,
        rp_id=key.rp_id,
        created_at=datetime.fromtimestamp(key.created_at, UTC),
        used_at=None if key.used_at is None else datetime.fromtimestamp(key.used_at, UTC),
        revoked_at=None if key.revoked_at is None else datetime.fromtimestamp(key.revoked_at, UTC),
    )


def _date(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")

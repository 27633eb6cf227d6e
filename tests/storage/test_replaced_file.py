"""A database that is replaced under the processes that use it: a restored backup, or a home that was emptied."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from planwarden.agent.common.errors import StoreReplaced
from planwarden.storage.sqlite.store import SqliteStore
from planwarden.tools.registry import Registry
from tests.harness.ledger import Ledger
from tests.harness.team import Gate, engine_on, start, step
from tests.requirements import requirement
from tests.storage.suite import Scribe
from tests.support.fakes import recording_tool

pytestmark = pytest.mark.anyio


def replace_file(path: Path, how: str) -> None:
    """Another file stands in the place of the database, as after `mv backup planwarden.db`, or none."""
    if how == "removed":
        path.unlink()
    else:
        backup = path.with_name("backup.db")
        shutil.copy(path, backup)
        os.replace(backup, path)


@requirement("sqlite:replaced")
@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_nothing_is_written_to_or_read_from_a_file_that_another_one_replaced(tmp_path: Path, how: str) -> None:
    path = tmp_path / "planwarden.db"
    store = SqliteStore.open(path)
    scribe = Scribe.on(store, "e1")
    await scribe.start()
    replace_file(path, how)
    with pytest.raises(StoreReplaced, match="end every planwarden process"):
        await scribe.finish()
    with pytest.raises(StoreReplaced):
        await store.header("e1")
    await store.close()


@requirement("sqlite:replaced")
async def test_an_engine_whose_file_was_replaced_runs_no_effect_and_ends(tmp_path: Path) -> None:
    path, ledger = tmp_path / "home" / "planwarden.db", Ledger(tmp_path / "effects")
    store, gate = SqliteStore.open(path), Gate()
    tools = Registry([recording_tool(ledger, "slow", effect="read", before=gate.hold), recording_tool(ledger, "mail")])
    with pytest.raises(StoreReplaced):
        async with engine_on(store, tools) as engine:
            await start(engine, step("slow", "slow"), step("mail", "mail", "slow"))
            await gate.is_reached.wait()
            replace_file(path, "replaced")
            gate.may_pass.set()
            await anyio.sleep_forever()
    await store.close()
    assert "mail" not in ledger.tools_run()


@requirement("sqlite:replaced")
@pytest.mark.slow
def test_a_server_whose_database_was_replaced_ends_with_a_sentence(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "planwarden.server.main",
        "--home",
        str(tmp_path),
        "serve",
        "--http",
        "--port",
        "0",
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        path, lines = tmp_path / "planwarden.db", list[str]()
        for line in server.stderr:
            lines.append(line)
            if "http://" in line:
                break
        path.unlink()
        said = "".join([*lines, server.stderr.read()])
        assert server.wait(60) == 1
    finally:
        server.send_signal(signal.SIGKILL)
        server.stderr.close()
        server.wait()
    assert "was replaced or removed" in said and "Traceback" not in said

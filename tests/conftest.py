"""What every test module shares: one event loop back end, every store, no network, campaigns only on request."""

import asyncio
import atexit
import json
import os
import signal
import sqlite3
import ssl
import sys
from collections.abc import AsyncGenerator, Iterator
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import uvicorn.server
from hypothesis import HealthCheck, is_hypothesis_test, settings
from jsonschema import Draft202012Validator

from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.ports.store import Store
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite import store as sqlite_store
from planwarden.storage.sqlite.database import migrate
from planwarden.tools.function import ArgumentReader, Parameters, build_reader
from tests.storage.suite import BACK_END_NAMES, BACK_ENDS, BackEnd
from tests.support.postgres import as_url, shared_server

# How long an example takes says how busy the machine is.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples each time, so that what passed passes again; `make exhaustive SEED=` draws others.
settings.register_profile("planwarden", PATIENT, max_examples=20, derandomize=True)
settings.register_profile("exhaustive", PATIENT, max_examples=200, derandomize=True)
settings.register_profile("drawn", PATIENT, max_examples=200)
settings.load_profile("planwarden")

# Hundreds of tests start programs: with no bytecode kept, each would compile all it imports again, most of its time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets what it runs in the background ignore Ctrl-C, and so would every program that a test interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--clients", action="store_true", help="also drive real clients from public registries")
    parser.addoption("--guard", action="store_true", help="also drive real hosts under the guard")
    parser.addoption("--downstream", action="store_true", help="also start MCP servers from public registries")
    parser.addoption("--postgres", action="store_true", help="also run what needs pgbouncer or mounts")
    parser.addoption("--no-skips", action="store_true", help="fail when a test was skipped; the summary says which")
    parser.addoption("--exhaustive", action="store_true", help="also run all variants, and many examples")
    parser.addoption("--long", action="store_true", help="also run the campaigns of many minutes (marker `long`)")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """For `-n auto`, one worker more than processors: a test that waits for a program leaves its processor idle."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return (usable or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--exhaustive"):
        settings.load_profile("drawn" if config.getoption("--hypothesis-seed") else "exhaustive")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Campaigns run only with `--long`, public servers only with `--downstream`, real clients only with `--clients`
    or `--guard`, PgBouncer only with `--postgres`, all variants only with `--exhaustive`."""
    for item in items:
        # Hypothesis has other examples each time, so more of them are more variants.
        if config.getoption("--exhaustive") and is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.exhaustive)
    names = ("long", "downstream", "clients", "guard", "postgres", "exhaustive")
    unwanted = [name for name in names if not config.getoption(f"--{name}")]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in unwanted)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With `--no-skips`, what was skipped has not passed. Workers of xdist report to a session that has the list."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--no-skips") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def known_work(pytestconfig: pytest.Config) -> Iterator[None]:
    """What needs public registries, which it reads through certificates, does everything itself."""
    with pytest.MonkeyPatch.context() as patch:
        if not any(pytestconfig.getoption(f"--{name}") for name in ("clients", "guard", "downstream")):
            do_once(patch)
        yield


@pytest.fixture
def url() -> Iterator[str]:
    """Of an empty database of the PostgreSQL that the tests of this process share."""
    database = shared_server().make_database()
    yield as_url(database)
    shared_server().empty_database(database)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=BACK_END_NAMES)
async def back_end(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[BackEnd]:
    """Each kind of store in turn, in a home of its own."""
    made = BACK_ENDS[request.param](tmp_path / "home")
    try:
        with anyio.fail_after(60):
            yield made
    finally:
        await made.close()


@pytest.fixture
def store(back_end: BackEnd) -> Store:
    return back_end.connect()


@pytest.fixture
def clock(back_end: BackEnd) -> ManualClock:
    return back_end.clock


def do_once(patch: pytest.MonkeyPatch) -> None:
    """Work of libraries that comes out the same for every test, and that costs more than most tests themselves.

    This process does it once, until `patch` is undone; a program that starts by itself is not touched.
    """
    _check_schemas_once(patch)
    _describe_tools_once(patch)
    # Each warden looks through the files of all installed packages for tools.
    patch.setattr("planwarden.server.settings.catalogue.entry_points", cache(entry_points))
    _make_tables_once(patch)
    _trust_nobody_outside(patch)
    _stop_serving_soon(patch)


def _check_schemas_once(patch: pytest.MonkeyPatch) -> None:
    """Each session of the SDK's client checks the schemas of the tools that it calls, and ours are long."""
    check = Draft202012Validator.check_schema

    @lru_cache(maxsize=256)
    def check_text(text: str) -> None:
        check(json.loads(text))

    def check_once(schema: object) -> None:
        check_text(json.dumps(schema))

    patch.setattr(Draft202012Validator, "check_schema", check_once)


def _describe_tools_once(patch: pytest.MonkeyPatch) -> None:
    """Hundreds of tests define the same few tools, whose models and schemas take a third of a short test."""
    readers: dict[object, tuple[dict[str, JsonValue], ArgumentReader]] = {}
    schemas: dict[object, tuple[object, Schema]] = {}

    def build_once(tool_name: str, parameters: Parameters) -> tuple[dict[str, JsonValue], ArgumentReader]:
        key = (tool_name, *((name, annotation, repr(default)) for name, (annotation, default) in parameters.items()))
        try:
            return readers[key] if key in readers else readers.setdefault(key, build_reader(tool_name, parameters))
        except TypeError:  # an annotation that has no hash
            return build_reader(tool_name, parameters)

    def compile_schema(schema: dict[str, JsonValue], **options: bool) -> Schema:
        key = (id(schema), *options.items())
        if key not in schemas:
            schemas[key] = (schema, Schema(schema, **options))
        return schemas[key][1]

    patch.setattr("planwarden.tools.function.build_reader", build_once)
    patch.setattr("planwarden.tools.registry.Schema", compile_schema)


def _make_tables_once(patch: pytest.MonkeyPatch) -> None:
    """Each store in memory makes all tables, which copying takes a fiftieth of."""
    empty = sqlite3.connect(sqlite_store.PLACE, isolation_level=None, check_same_thread=False)
    atexit.register(empty.close)
    migrate(empty, sqlite_store.PLACE)

    def copy(connection: sqlite3.Connection, path: Path) -> None:
        empty.backup(connection)

    patch.setattr(sqlite_store, "migrate", copy)


def _trust_nobody_outside(patch: pytest.MonkeyPatch) -> None:
    """Each client of HTTP reads the files with the certificates of all public authorities, whom no test needs to
    believe. Certificates that a test makes are given as data."""
    load = ssl.SSLContext.load_verify_locations

    def load_data(context: ssl.SSLContext, cafile: Any = None, capath: Any = None, cadata: Any = None) -> None:
        if cadata is not None:
            load(context, cadata=cadata)

    patch.setattr(ssl.SSLContext, "load_verify_locations", load_data)


def _stop_serving_soon(patch: pytest.MonkeyPatch) -> None:
    """A server of uvicorn looks ten times a second whether it shall end, and waits as long once more when it does."""

    async def sleep(delay_s: float) -> None:
        await asyncio.sleep(delay_s / 10)

    patch.setattr(uvicorn.server, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))

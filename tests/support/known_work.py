"""Work of libraries that comes out the same for every test, and that costs more than most tests themselves.

A process does it once. What a program costs that starts by itself is not touched: this is only for the tests' process.
"""

import asyncio
import json
import ssl
from functools import cache, lru_cache
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn.server
from jsonschema import Draft202012Validator


def do_once(patch: pytest.MonkeyPatch) -> None:
    """Until `patch` is undone."""
    _check_schemas_once(patch)
    _read_entry_points_once(patch)
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


def _read_entry_points_once(patch: pytest.MonkeyPatch) -> None:
    """Each warden looks through the files of all installed packages for tools."""
    patch.setattr("planwarden.server.settings.catalogue.entry_points", cache(entry_points))


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

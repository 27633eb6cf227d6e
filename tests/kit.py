"""What most tests need, from one import: a warden with tools that keep a ledger, plans, and a person who decides.

What serves MCP, draws pages or runs commands is imported when a test names it: most test processes need none of it.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import JsonValue
from pytest import ParameterSet

import planwarden
from planwarden import Decision, Execution, Step, Warden
from planwarden.agent.approval.answers import Authority
from planwarden.agent.common.artifact import is_stand_in
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.audit import AuditEntry
from planwarden.agent.core.execution.fold import apply
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.plan.plan_parser import parse_plan
from planwarden.agent.core.tool import CallContext
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.agent.ports.model import CallerModel
from planwarden.agent.ports.store import Store, SuspensionRow
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.audit import read_audit_page, verify_audit
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.settings.configuration import Settings, load_settings
from planwarden.server.settings.policy import OperatorPolicy
from planwarden.server.views.execution import ask_for_person
from planwarden.server.views.suspension import Suspension
from planwarden.storage.clock import ManualClock
from planwarden.storage.sqlite.store import MemoryStore, SqliteStore
from planwarden.tools.base import Tool, define
from planwarden.tools.registry import Registry
from tests.requirements import requirement
from tests.support.wardens import (
    NOWHERE,
    Ledger,
    PausingTool,
    acting,
    calls,
    confirm,
    find_engine,
    model_step,
    plan,
    says,
    statuses,
    tool_step,
    warden,
)

if TYPE_CHECKING:
    from mcp import Client

    from tests.server.cli.support import Cli, make_home
    from tests.server.inbox.support import Browser, inbox, open_inbox
    from tests.server.mcp.support import ok, open_desk, refused, served

__all__ = ["NOWHERE", "Authority", "Browser", "CallerModel", "Cli", "Client", "Decision", "Execution", "Ledger"]
__all__ += ["ManualClock", "MemoryStore", "OperatorPolicy", "PausingTool", "Registry", "Requester", "Service"]
__all__ += ["Settings", "SqliteStore", "StartOptions", "Store", "Suspension", "Warden", "apply", "calls", "confirm"]
__all__ += ["ev", "find_engine", "inbox", "load_settings", "make_home", "model_step", "ok", "open_desk", "open_inbox"]
__all__ += ["ITEM", "AuditEntry", "Engine", "Home", "Json", "ScriptedModel", "Tool", "define", "read_audit_page"]
__all__ += ["acting", "verify_audit"]
__all__ += ["parse_plan", "plan", "refused", "requirement", "says", "served", "statuses", "tool_step", "warden"]

_BORDERS = {
    "mcp": ("Client",),
    "tests.server.cli.support": ("Cli", "make_home"),
    "tests.server.inbox.support": ("Browser", "inbox", "open_inbox"),
    "tests.server.mcp.support": ("ok", "open_desk", "refused", "served"),
}
"""The names that each heavy module gives."""

Json = dict[str, JsonValue]
ITEM: JsonValue = {"$from": "item"}
"""Binds the item of a loop."""
PAGES = 3_000
"""Of a result that is too large for the log."""
YES, NO = Decision(approved=True), Decision(approved=False, reason="too risky")


def __getattr__(name: str) -> object:
    """Return a name of a heavy module, which is imported now."""
    for module, names in _BORDERS.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(name)


def governed(home: Path = NOWHERE, /, **policy: object) -> Settings:
    # The fields are the policy's own; a wrong one raises at once.
    return Settings(home=home, policy=OperatorPolicy(**policy))  # pyright: ignore[reportArgumentType]


def save_plan(home: Path, name: str, document: JsonValue) -> None:
    """Save a plan in the home, text as YAML and anything else as JSON.

    The file is there whole at once: a server that looks while it is being written would see a broken one.
    """
    (home / "plans").mkdir(exist_ok=True)
    ending, text = ("yaml", document) if isinstance(document, str) else ("json", json.dumps(document))
    written = home / f"{name}.part"
    written.write_text(text, encoding="utf-8")
    written.replace(home / "plans" / f"{name}.{ending}")


def by(
    principal: str = "ann", assurance: ev.Assurance = "human", channel: str = "test", digest: str | None = None
) -> Authority:
    """Return what the word of somebody is worth, a person's unless a test says otherwise."""
    return Authority(assurance=assurance, channel=channel, principal=principal, digest=digest)


async def decide(
    place: Warden | Service,
    question: Execution | Suspension | SuspensionRow | tuple[str, str],
    decision: Decision = YES,
    authority: Authority | None = None,
    *,
    principal: str | None = None,
    wait_seconds: float = 60,
    then: Callable[[], Awaitable[None]] | None = None,
) -> Execution:
    """Answer a question, by its thread and id or as the one open question of an execution, as a person does."""
    if isinstance(question, Execution):
        [question] = question.suspensions
    ids = question if isinstance(question, tuple) else (question.thread_id, question.suspension_id)
    service = place.service if isinstance(place, Warden) else place
    execution, is_accepted = await service.answer(*ids, decision, authority or by(), principal=principal, then=then)
    view = service.build_view(await service.wait(execution, wait_seconds) if wait_seconds else execution)
    return view if is_accepted else ask_for_person(view, ids[1])


async def start_as(service: Service, document: JsonValue, requester: Requester, **options: Any) -> Execution:
    """Run a plan for somebody, and return what becomes of it."""
    execution = await service.execute_plan(document, StartOptions(requester=requester, **options))
    return service.build_view(await service.wait(execution, 60))


@planwarden.tool(risk="read", effect="read")
async def crawl(pages: int = PAGES, start: int = 0) -> dict[str, JsonValue]:
    """Find many pages."""
    return {"results": [{"url": f"https://a.test/{start + n}", "text": "é" * 50} for n in range(pages)]}


def stand_in_of(step: Step) -> dict[str, Any]:
    """Returns the stand-in that the step shows as its result."""
    assert isinstance(step.result, dict) and is_stand_in(step.result)
    return step.result


def build_constant_call(value: object) -> Callable[[dict[str, JsonValue], CallContext], Awaitable[object]]:
    async def call(arguments: dict[str, JsonValue], context: CallContext) -> object:
        return value

    return call


def each_once(*columns: Sequence[object]) -> list[ParameterSet]:
    """All combinations. `make test` runs as many as the longest column is long, so that every value is in one of them;
    the first values of all columns are together."""
    kept = {tuple(row % len(column) for column in columns) for row in range(max(map(len, columns)))}
    everything = product(*(range(len(column)) for column in columns))
    return [
        _case(tuple(column[at] for column, at in zip(columns, row, strict=True)), is_exhaustive=row not in kept)
        for row in everything
    ]


def first_only(*cases: object, keep: int = 1) -> list[ParameterSet]:
    """`make test` runs the first `keep` cases. A tuple is a case of several parameters."""
    return [
        _case(cast("tuple[object, ...]", case) if isinstance(case, tuple) else (case,), is_exhaustive=number >= keep)
        for number, case in enumerate(cases)
    ]


def _case(values: tuple[object, ...], *, is_exhaustive: bool) -> ParameterSet:
    return pytest.param(*values, marks=pytest.mark.exhaustive if is_exhaustive else ())

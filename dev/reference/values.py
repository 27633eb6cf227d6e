"""What goes over the wire as JSON: executions, questions, plans, observations, errors."""

import inspect
from collections.abc import Mapping

import anyio
import msgspec
from tests.support.wardens import warden

from dev.reference.code import camel, field_texts, sentence, summary, table
from dev.reference.settings import model_table
from planwarden.agent.common import errors
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.question import MatchedRule
from planwarden.agent.core.plan.plan_input import CallInput, StepInput
from planwarden.server.mcp.results import INTERNAL_CODES
from planwarden.server.views.encoding import HIDDEN_FIELDS, list_optional
from planwarden.server.views.execution import Execution, SavedPlanRun, Step, Usage
from planwarden.server.views.forecast import (
    Allowed,
    AllowedByRule,
    Asking,
    Forecast,
    ForecastStep,
    Impossible,
    Unforeseen,
)
from planwarden.server.views.listing import SavedPlanLine
from planwarden.server.views.observations import OBSERVED, Observation
from planwarden.server.views.suspension import CoveredCallView, Endorsement, HowToAnswer, Suspension
from planwarden.server.views.tools import Error, LoopItem, LoopItems, RehearsedCall, ToolCall, ToolLine, ToolView

IN_LOGS: Mapping[str, str] = {
    "cancelled": "The call was stopped, because its execution was",
    "denied": "A [rule](../rules.md) of the operator refuses the call, even an approved one; the message says why",
    "digest_mismatch": "The stored question is not the one that was approved; somebody edited the database",
    "invalid_arguments": "The call's arguments do not fit its tool, or hold placeholders",
    "iterations_exhausted": "The step was not done after `maxIterations` replies of the model",
    "rejected": "A person said no, or the time to say yes passed",
    "timeout": "The call gave no result in its time and changed nothing; one with an effect is `outcome_unknown`",
    "tools_not_called": "The model wrote text instead of calling required tools, even after the enforcement prompts",
}
"""Codes of calls, steps and executions that no exception carries."""


def fields_of(kind: type[msgspec.Struct]) -> str:
    """The keys of a view."""
    said = field_texts(kind)
    rows = (
        (f"`{camel(name)}`", "maybe" if _may_be_left_out(kind, name) else "always", sentence(said[name]))
        for name in kind.__struct_fields__
        if name != "extra" and name not in HIDDEN_FIELDS
    )
    return table(("key", "there", "meaning"), rows)


def _may_be_left_out(kind: type[msgspec.Struct], name: str) -> bool:
    """As `to_json` does it; a text is never empty."""
    return name in list_optional(kind) and kind.__annotations__[name] is not str


def errors_raised() -> str:
    """The codes of refusals, each with the first line of its class."""
    return table(("code", "meaning"), ((f"`{code}`", text) for code, text in sorted(error_codes().items())))


def error_codes() -> dict[str, str]:
    """Returns every code that an MCP result can have; internal codes become `internal_error`."""
    found: dict[str, str] = {}
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.PlanwardenError) and kind.code not in INTERNAL_CODES and "code" in vars(kind):
            text = sentence(summary(kind).split(";")[0])
            # UsageError is the family of the others, which say what it is about.
            if kind is not errors.UsageError:
                found[kind.code] = text
    found[errors.PlanwardenError.code] = "Something went wrong inside planwarden; its log on stderr says what"
    return found


def errors_in_logs() -> str:
    """The codes that only calls, steps and executions have."""
    return table(("code", "meaning"), ((f"`{code}`", text) for code, text in IN_LOGS.items()))


def observed() -> str:
    """Lists each type of observation: the events that it shows, and the keys of its data."""
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for event, (kind, keys) in OBSERVED.items():
        happened, names = rows.setdefault(kind, ([], []))
        happened.append(sentence(summary(event).partition("; see")[0]))
        names.extend(key for key in keys if key not in names)
    prompt = "The enforcement prompt after a `VALIDATION_FAILED` of a strict step"
    rows["ENFORCEMENT_SENT"] = ([prompt], list(OBSERVED[ev.ValidationFailed][1]))
    return table(
        ("type", "what happened", "`data`"),
        (
            (f"`{kind}`", "; or: ".join(happened), ", ".join(f"`{name}`" for name in names))
            for kind, (happened, names) in rows.items()
        ),
    )


def step() -> str:
    """The keys of a step of a plan."""
    return model_table(StepInput)


def call() -> str:
    """The keys of a call of a step."""
    return model_table(CallInput)


def built_in() -> str:
    """The tools that every catalogue has."""
    return anyio.run(_built_in)


async def _built_in() -> str:
    async with warden() as opened:
        found = (await opened.search_tools(limit=100)).tools
    rows = ((f"`{line.name}`", sentence(line.description), line.execution_mode, f"`{line.risk}`") for line in found)
    return table(("tool", "does", "mode", "risk"), rows)


BLOCKS = {
    **{
        f"fields {kind.__name__}": lambda kind=kind: fields_of(kind)
        for kind in (
            Execution,
            Step,
            ToolCall,
            RehearsedCall,
            Forecast,
            Asking,
            Allowed,
            AllowedByRule,
            MatchedRule,
            Unforeseen,
            Impossible,
            ForecastStep,
            Error,
            Suspension,
            CoveredCallView,
            HowToAnswer,
            Endorsement,
            Usage,
            SavedPlanRun,
            LoopItems,
            LoopItem,
            SavedPlanLine,
            Observation,
            ToolLine,
            ToolView,
        )
    },
    "errors": errors_raised,
    "errors in logs": errors_in_logs,
    "observations": observed,
    "step": step,
    "call": call,
    "built-in tools": built_in,
}

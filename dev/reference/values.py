"""What goes over the wire as JSON: executions, questions, plans, observations, errors."""

import inspect
from collections.abc import Mapping

import anyio
import msgspec
from tests.support.wardens import warden

from dev.reference.code import camel, field_texts, sentence, summary, table
from planwarden.agent.common import errors
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.question import MatchedRule
from planwarden.server.mcp.results import INTERNAL_CODES
from planwarden.server.views import execution, forecast, listing, observations, suspension, tools
from planwarden.server.views.encoding import HIDDEN_FIELDS, list_optional

VIEWS = (execution, forecast, listing, observations, suspension, tools)
ELSEWHERE = {
    *("EarlierEffect", "ExecutionLine", "ExecutionLines", "TickView", "ScheduleView"),
    *("EditView", "SuspensionPage", "ToolPage", "ToolSchemas"),
}
"""Views that only enclose others, or that the pages explain in words."""

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


def find_views() -> list[type[msgspec.Struct]]:
    """Return the views whose fields are documented, and the two values of the core that they show."""
    kinds = (
        kind for module in VIEWS for kind in vars(module).values() if getattr(kind, "__module__", "") == module.__name__
    )
    views = (kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, msgspec.Struct))
    return [
        MatchedRule,
        execution.Usage,
        *(kind for kind in views if kind.__name__ not in ELSEWHERE and kind.__name__[0] != "_"),
    ]


def fields(kind: type[msgspec.Struct]) -> str:
    """The keys of a view."""
    said = field_texts(kind)
    rows = (
        (f"`{camel(name)}`", "maybe" if _may_be_left_out(kind, name) else "always", said[name])
        for name in kind.__struct_fields__
        if name != "extra" and name not in HIDDEN_FIELDS
    )
    return table(("key", "there", "meaning"), rows)


def attributes(kind: type[msgspec.Struct]) -> str:
    """The attributes of a struct that programs make or get."""
    return table(("attribute", "meaning"), ((f"`{name}`", field_texts(kind)[name]) for name in kind.__struct_fields__))


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
    for event, (kind, keys) in observations.OBSERVED.items():
        happened, names = rows.setdefault(kind, ([], []))
        happened.append(sentence(summary(event).partition("; see")[0]))
        names.extend(key for key in keys if key not in names)
    prompt = "The enforcement prompt after a `VALIDATION_FAILED` of a strict step"
    rows["ENFORCEMENT_SENT"] = ([prompt], list(observations.OBSERVED[ev.ValidationFailed][1]))
    return table(
        ("type", "what happened", "`data`"),
        (
            (f"`{kind}`", "; or: ".join(happened), ", ".join(f"`{name}`" for name in names))
            for kind, (happened, names) in rows.items()
        ),
    )


def built_in() -> str:
    """The tools that every catalogue has."""
    return anyio.run(_built_in)


async def _built_in() -> str:
    async with warden() as opened:
        found = (await opened.search_tools(limit=100)).tools
    rows = ((f"`{line.name}`", sentence(line.description), line.execution_mode, f"`{line.risk}`") for line in found)
    return table(("tool", "does", "mode", "risk"), rows)

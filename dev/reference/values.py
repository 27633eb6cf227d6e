"""What goes over the wire as JSON: executions, questions, plans, observations, errors."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

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
from planwarden.server.views import observations
from planwarden.server.views.encoding import HIDDEN_FIELDS, OPTIONAL_FIELDS
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
from planwarden.server.views.loop_items import LoopItem, LoopItems
from planwarden.server.views.observations import Observation
from planwarden.server.views.suspension import CoveredCallView, Endorsement, HowToAnswer, Suspension
from planwarden.server.views.tools import (
    Error,
    RehearsedCall,
    ToolCall,
    ToolLine,
    ToolView,
)

IN_LOGS: Mapping[str, str] = {
    "cancelled": "The call was stopped, because its execution was",
    "denied": "A [rule](../rules.md) of the operator refuses the call, even an approved one; the message says why",
    "digest_mismatch": "The stored question is not the one that was approved; somebody edited the database",
    "invalid_arguments": "The call's arguments do not fit its tool, or hold placeholders",
    "iterations_exhausted": "The step was not done after `maxIterations` replies of the model",
    "rejected": "A person said no, or the time to say yes passed",
    "timeout": "The call gave no result in its time and changed nothing; one with an effect is `outcome_unknown`",
    "tools_not_called": "The model wrote text instead of calling required tools, also after the enforcement prompts",
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
    """As `to_json` does it: what is optional and empty, and the error of a call without one."""
    is_text = kind.__annotations__[name] is str
    return (name in OPTIONAL_FIELDS and not is_text) or (kind is ToolCall and name == "error")


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
    for kind, event, keys in _cases():
        happened, names = rows.setdefault(kind, ([], []))
        happened.append(sentence(summary(event).partition("; see")[0]))
        names.extend(key for key in keys if key not in names)
    [sent] = (keys for _, event, keys in _cases() if event is ev.ValidationFailed)
    rows["ENFORCEMENT_SENT"] = (["The enforcement prompt after a `VALIDATION_FAILED` of a strict step"], sent)
    return table(
        ("type", "what happened", "`data`"),
        (
            (f"`{kind}`", "; or: ".join(happened), ", ".join(f"`{name}`" for name in names))
            for kind, (happened, names) in rows.items()
        ),
    )


def _cases() -> Iterator[tuple[str, type, list[str]]]:
    """Type, event and keys of the data, from the code that makes the observations."""
    tree = ast.parse(Path(inspect.getfile(observations)).read_text(encoding="utf-8"))
    for case in (node for node in ast.walk(tree) if isinstance(node, ast.match_case)):
        names = [node.attr for node in ast.walk(case.pattern) if isinstance(node, ast.Attribute)]
        for made in (node.value for node in ast.walk(case) if isinstance(node, ast.Return)):
            if isinstance(made, ast.Tuple) and isinstance(made.elts[0], ast.Constant):
                keys = _keys(made.elts[2], case)
                yield from ((str(made.elts[0].value), getattr(ev, name), keys) for name in names)


def _keys(data: ast.expr, case: ast.match_case) -> list[str]:
    match data:
        case ast.Dict(keys=keys):
            return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        case ast.Call():
            return ["callId", "status", "code", "message"]
        case ast.Name(id=name):
            assigned = (node for node in case.body if isinstance(node, ast.Assign | ast.AnnAssign))
            for node in assigned:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Name) and target.id == name for target in targets) and node.value:
                    return _keys(node.value, case)
            raise ValueError(f"no data called {name!r}")
        case _:
            raise ValueError(f"data of an unknown form: {ast.dump(data)}")


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

"""A saved plan as its pages show it.

A file may be hostile, such as one of a repository: everything that it says is escaped and cut. A start from a page
starts the version that was on the page.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, LimitExceeded, UnknownPlan
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.server.api.service import Service
from planwarden.server.inbox.request import NotFound, capitalize
from planwarden.server.plans.folders import HOME
from planwarden.server.plans.plan_file import PlanFault, SavedPlan, is_plan_name
from planwarden.server.views.escaping import escape_text, shorten_text
from planwarden.server.views.fields import build_fields
from planwarden.server.views.forecast import Forecast

VERSION_DIGITS = 12
LISTED_CHARS = 280
WHOLE_CHARS = 2_000
REASON_CHARS = 500
MAX_NAMED_INPUTS = 8
MAX_STEPS_SHOWN = 200


class SavedPlanCard(msgspec.Struct, frozen=True, kw_only=True):
    """A saved plan, in escaped words."""

    name: str
    title: str
    description: str
    source: str
    """Which folder it comes from, in words."""
    is_own: bool
    """It is in the home, where only the operator writes."""
    path: str
    version: str
    inputs: tuple[str, ...]
    """The names of what a run is given, at most `MAX_NAMED_INPUTS`."""


class BrokenPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is not a usable plan, in escaped words."""

    name: str
    path: str
    reason: str


class StepPreview(msgspec.Struct, frozen=True, kw_only=True):
    """A step before it has run, in escaped words."""

    step_id: str
    description: str
    tools: tuple[str, ...]
    after: tuple[str, ...]
    asks: tuple[str, ...]
    """Whom its calls will ask and why, one sentence each."""
    unknown: tuple[str, ...]
    """What only the run will know."""
    faults: tuple[str, ...]
    """Why calls would fail now."""


class ForecastCard(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said of a run before it starts."""

    summary: str
    steps: tuple[StepPreview, ...] = ()
    left_out: int = 0
    """Steps that the page does not show."""
    warnings: tuple[str, ...] = ()
    fault: str = ""
    """Why the plan cannot start in this process; everything else is empty then."""


async def find_shown_plan(service: Service, name: str) -> SavedPlan | BrokenPlan:
    """Return the plan as it is now, or why its file cannot be used.

    Raises:
        NotFound: there is no file of that name.
    """
    catalogue = await service.look_at_plans()
    saved, fault = catalogue.get(name), catalogue.get_fault(name)
    if saved is None:
        if fault is None or not is_plan_name(name):
            raise NotFound("there is no saved plan of this name; it may have been renamed or removed")
        return build_broken_plan(fault)
    return saved


def build_plan_card(plan: SavedPlan, limit: int = LISTED_CHARS) -> SavedPlanCard:
    """Return what a page shows of the plan; its description is cut to `limit` characters."""
    names = [field.name for field in build_fields(plan.inputs)]
    labels = [shorten_text(name, 64) for name in names[:MAX_NAMED_INPUTS]]
    return SavedPlanCard(
        name=plan.name,
        title=shorten_text(_flow(plan.title or ""), 200),
        description=shorten_text(_flow(plan.description or ""), limit),
        source="your plans" if plan.source == HOME else shorten_text(plan.source, 200),
        is_own=plan.source == HOME,
        path=escape_text(str(plan.path)),
        version=plan.digest[:VERSION_DIGITS],
        inputs=(*labels, f"{len(names) - len(labels)} more") if len(names) > len(labels) else tuple(labels),
    )


def build_broken_plan(fault: PlanFault) -> BrokenPlan:
    return BrokenPlan(
        name=fault.name if is_plan_name(fault.name) else "",
        path=escape_text(str(fault.path)),
        reason=shorten_text(fault.reason, REASON_CHARS),
    )


async def forecast_run(service: Service, plan: SavedPlan, inputs: Mapping[str, JsonValue] | None) -> ForecastCard:
    """Return what a run with these inputs would do and ask; without them, what is known of every run."""
    try:
        forecast = await service.forecast_plan(plan.document, inputs=inputs, principal=LOCAL)
    except (InvalidPlan, InvalidArguments, LimitExceeded, UnknownPlan) as error:
        if inputs is None and isinstance(error, InvalidArguments):
            return ForecastCard(summary="It depends on the inputs: fill them in, and press Forecast.")
        return ForecastCard(summary="", fault=shorten_text(capitalize(error.message), WHOLE_CHARS))
    return build_forecast_card(forecast, plan.document)


def build_forecast_card(forecast: Forecast, document: Mapping[str, JsonValue]) -> ForecastCard:
    """Return the forecast in words, step by step."""
    descriptions = dict(_read_descriptions(document))
    first_steps = forecast.steps[:MAX_STEPS_SHOWN]
    return ForecastCard(
        summary=_summarize(forecast),
        steps=tuple(
            StepPreview(
                step_id=shorten_text(step.id, 200),
                description=shorten_text(_flow(descriptions.get(step.id, "")), LISTED_CHARS),
                tools=tuple(shorten_text(tool, 128) for tool in step.tools),
                after=tuple(shorten_text(name, 64) for name in step.after),
                asks=tuple(_describe_asks(step.id, forecast)),
                unknown=tuple(_describe_unknown(step.id, forecast)),
                faults=tuple(
                    f"{shorten_text(call.tool_name, 128)} would fail now: {shorten_text(call.why, REASON_CHARS)}"
                    for call in forecast.impossible
                    if call.step_id == step.id
                ),
            )
            for step in first_steps
        ),
        left_out=len(forecast.steps) - len(first_steps),
        warnings=tuple(shorten_text(warning, REASON_CHARS) for warning in forecast.warnings),
    )


def _summarize(forecast: Forecast) -> str:
    loops = sum(asking.for_all_rows is True for asking in forecast.asks)
    count = len(forecast.asks) - loops
    may_ask_more = bool(forecast.only_the_run_knows or forecast.models or forecast.unseen)
    call_parts = [f"{count} call{'' if count == 1 else 's'} will ask before {'it runs' if count == 1 else 'they run'}"]
    asks_for_rows = f"{loops} loop{'' if loops == 1 else 's'} will ask once for all rows"
    summary = " and ".join([*(call_parts if count else []), *([asks_for_rows] if loops else [])])
    if summary:
        return f"{summary}, perhaps more." if may_ask_more else f"{summary}."
    return "Whether it asks anybody, only the run will know." if may_ask_more else "It will ask nobody."


def _describe_asks(step_id: str, forecast: Forecast) -> Iterator[str]:
    yield from (asking.sentence for asking in forecast.asks if asking.step_id == step_id)


def _describe_unknown(step_id: str, forecast: Forecast) -> Iterator[str]:
    for step in forecast.steps:
        if step.id == step_id and step.fate:
            yield f"It {step.fate}."
        if step.id == step_id and step.needs_model:
            yield "A model writes its calls or its text."
    for call in forecast.only_the_run_knows:
        if call.step_id == step_id:
            manner = "only read" if call.risk == "read" else f"are {call.risk or 'of unknown risk'}"
            yield (
                f"{shorten_text(call.tool_name, 128)} takes values of {_join(call.takes_from)}, so only the run will "
                f"know whom it asks. Calls of this tool {manner}."
            )


def _read_descriptions(document: Mapping[str, JsonValue]) -> Iterator[tuple[str, str]]:
    """Yield the id and the description of each step, as the file has them."""
    steps = document.get("todoList", document.get("steps"))
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict) and isinstance(step_id := step.get("id"), str):
            description = step.get("description")
            yield step_id, description if isinstance(description, str) else ""


def _join(names: Sequence[str]) -> str:
    return ", ".join(shorten_text(name, 64) for name in names[:10])


def _flow(text: str) -> str:
    """The text of a file, whose lines end where its writer ran out of room, as one line."""
    return " ".join(text.split())

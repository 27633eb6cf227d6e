"""Turns a reply into events, whichever model wrote it.

Structured fields win. Without them, `find_json` searches the text: between the markers, in a fence, or bare. Everything
has a limit, and nothing that a model writes can set a status.
"""

import json

import msgspec

from planwarden.agent.common.canonical import check_depth, parse_finite_float, refuse_constant
from planwarden.agent.common.errors import InvalidArguments, InvalidPlan, LimitExceeded
from planwarden.agent.common.form import EXAMPLES, find_form_faults
from planwarden.agent.common.struct import JsonValue, copy_fields
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.plan.inputs import complete_inputs
from planwarden.agent.core.plan.pins import build_pins
from planwarden.agent.core.plan.plan import MAX_CALLS_PER_STEP, MAX_NAME_CHARS, STEPS_KEYS
from planwarden.agent.core.plan.plan_input import call_schema
from planwarden.agent.core.plan.plan_parser import PlanIntake

MARKER_START, MARKER_END = "---JSON_OUTPUT_START---", "---JSON_OUTPUT_END---"
MAX_CONTENT_CHARS = 100_000
CALLS_KEY, REVISE_KEY = "toolCalls", "revise"
NO_PLAN = f"your answer contained no plan; telling what you will do is not sending a plan; send {EXAMPLES['plan']}"
NO_VALUES = (
    "your plan begins without values for its inputs: give each input a 'default' that fits, or write the values into "
    "the steps and leave 'inputs' out"
)


class Reply(msgspec.Struct, frozen=True):
    """A model's answer before it is in the log."""

    content: str | None = None
    calls: tuple[ev.ProposedCall, ...] = ()
    plan: JsonValue = None
    revise: JsonValue = None
    """Patch of pending steps, in a reply to the prompt of a step."""
    input_tokens: int = 0
    output_tokens: int = 0
    source: str | None = None


def build_reply_events(
    reply: Reply, *, purpose: ev.Purpose, step_id: str | None, plans: PlanIntake, suspension_id: str | None = None
) -> tuple[ev.Event, ...]:
    """Return the event of the reply; for a plan, also the event that accepts it or says why it is refused.

    Raises:
        EarlierNeeded, ParsingNeeded: as in `plans.read`.
    """
    content = None if reply.content is None else reply.content[:MAX_CONTENT_CHARS]
    plan, calls, patch = reply.plan, reply.calls, reply.revise
    if purpose == "plan" and plan is None and content:
        plan = find_json(content, *STEPS_KEYS)
    if isinstance(plan, dict) and plan.keys() == {"plan"}:
        plan = plan["plan"]
    if purpose == "step" and not calls and content:
        calls = find_calls(content)
    if purpose == "step" and patch is None and content and REVISE_KEY in content:
        patch = (find_json(content, REVISE_KEY) or {}).get(REVISE_KEY)
    proposed = tuple(
        ev.ProposedCall(tool_name=call.tool_name[:MAX_NAME_CHARS], arguments=call.arguments)
        for call in calls[:MAX_CALLS_PER_STEP]
    )
    replied = copy_fields(
        ev.ModelReplied,
        reply,
        purpose=purpose,
        step_id=step_id,
        content=content,
        calls=proposed if purpose == "step" else (),
        revise=patch if purpose == "step" else None,
        suspension_id=suspension_id,
    )
    if purpose != "plan":
        return (replied,)
    try:
        if plan is None:
            raise InvalidPlan(NO_PLAN)
        accepted, warnings = plans.read(plan, author="model")
        # A model's plan may begin without inputs from a caller, so each input needs a default.
        inputs = complete_inputs(accepted.inputs, None)
    except InvalidArguments as error:
        return (replied, ev.PlanRefused(code=error.code, message=f"{error.message}; {NO_VALUES}"))
    except (InvalidPlan, LimitExceeded) as error:
        return (replied, ev.PlanRefused(code=error.code, message=error.message))
    pins, results = build_pins(accepted, plans.tools), plans.list_results(accepted)
    return (replied, ev.PlanAccepted(plan=accepted, warnings=warnings, pins=pins, earlier=results, inputs=inputs))


def find_json(text: str, *keys: str) -> dict[str, JsonValue] | None:
    """Return the first JSON object in the text that has one of the keys, else the first object, else None."""
    start = text.find(MARKER_START)
    if start >= 0:
        end = text.find(MARKER_END, start)
        text = text[start + len(MARKER_START) : end if end >= 0 else len(text)]
    decoder = json.JSONDecoder(parse_constant=refuse_constant, parse_float=parse_finite_float)
    position, attempts = text.find("{"), 0
    first: dict[str, JsonValue] | None = None
    while position >= 0 and attempts < 50:
        attempts += 1
        end = position + 1
        try:
            document, end = decoder.raw_decode(text, position)
            check_depth(document)
        except (ValueError, RecursionError, LimitExceeded):
            document = None
        if document is not None:
            if not keys or any(key in document for key in keys):
                return document
            first = document if first is None else first
        position = text.find("{", end)
    return first


def find_calls(content: str) -> tuple[ev.ProposedCall, ...]:
    """Return the calls that a model wrote into its text."""
    listed = (find_json(content, CALLS_KEY) or {}).get(CALLS_KEY)
    return read_calls(listed) if isinstance(listed, list) else ()


def read_calls(listed: list[JsonValue]) -> tuple[ev.ProposedCall, ...]:
    """Return the well-formed entries of a `toolCalls` list, up to a limit, and drop the others."""
    calls: list[ev.ProposedCall] = []
    for entry in listed[:MAX_CALLS_PER_STEP]:
        if not isinstance(entry, dict):
            continue
        name, arguments = entry.get("toolName"), entry.get("arguments", {})
        if isinstance(name, str) and isinstance(arguments, dict):
            calls.append(ev.ProposedCall(tool_name=name[:MAX_NAME_CHARS], arguments=arguments))
    return tuple(calls)


def describe_call_fault(content: str | None) -> str:
    """Return why the text of an answer made no call: what is wrong with the call in it, or that there is none."""
    if not content or (CALLS_KEY not in content and "tool_call" not in content):
        return "it contained no tool call"
    listed = (find_json(content, CALLS_KEY) or {}).get(CALLS_KEY)
    unread = f'no tool call in it could be read; write {{"{CALLS_KEY}": {EXAMPLES[CALLS_KEY]}}}'
    faults = () if listed is None else find_form_faults(listed, {"type": "array", "items": call_schema()}, CALLS_KEY)
    return next(iter(faults), unread)

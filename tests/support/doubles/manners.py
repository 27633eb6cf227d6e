"""How models behave: each manner is a function from a request to a reply.

Most of them break plan-and-execute agents, and a few break HTTP clients. `MANNERS` is the table of all of them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.support.doubles.messages import PLAN_TOOL, Body, ModelReply, ModelRequest, fence_json
from tests.support.doubles.plan_habits import (
    invent_condition,
    number_steps,
    write_wrong_keys,
    write_wrong_keys_twice,
)

PROSE = "I have carried out the step. Everything worked and the results are as expected."
PROSE_PLAN = "First I will find the records. Then I will find the details and write them down. {No JSON is needed.}"
HUGE_BYTES = 50_000_000
MANY_CALLS = 10_000


@dataclass(frozen=True)
class Manner:
    name: str
    does: str
    """What such a model does, for people."""
    answer: Callable[[ModelRequest], ModelReply]
    needs_wire: bool = False
    """It happens to the connection, so a caller cannot behave like this."""
    answers_closed: bool = False
    """As a caller, it answers the last question again until a refusal names the open one; no provider has questions."""
    is_recoverable: bool = True
    """Such a model does what it promised once it is told what was wrong, so its execution has to end completed."""


def _reply_with_plan(request: ModelRequest) -> ModelReply:
    if PLAN_TOOL in request.tools:
        return ModelReply(calls=((PLAN_TOOL, request.plan),))
    return ModelReply(text=f"Here is the plan.\n{fence_json(request.plan)}")


def obedient(request: ModelRequest) -> ModelReply:
    if request.wants_plan:
        return _reply_with_plan(request)
    if not request.tools:
        return ModelReply(text="Here is what the record shows.")
    return ModelReply(calls=tuple((name, request.sample_arguments(name)) for name in request.tools_to_call))


def planning(write: Callable[[ModelRequest], Body]) -> Callable[[ModelRequest], ModelReply]:
    """Returns what an obedient model answers that writes its plans in this way."""
    return lambda request: obedient(replace(request, plan=write(request)) if request.wants_plan else request)


def told_plan(request: ModelRequest) -> ModelReply:
    if not request.wants_plan:
        return obedient(request)
    return ModelReply(text=f"{PROSE_PLAN}\n\n{json.dumps(request.plan)}" if request.is_plan_refused else PROSE_PLAN)


def fenced(request: ModelRequest) -> ModelReply:
    """Writes whatever is JSON into its text, also where it could call tools."""
    reply = obedient(request)
    calls = [{"toolName": name, "arguments": arguments} for name, arguments in reply.calls]
    if request.wants_plan:
        return ModelReply(text=fence_json(request.plan))
    return ModelReply(text=fence_json({"toolCalls": calls})) if calls else reply


def one_call(request: ModelRequest) -> ModelReply:
    reply = obedient(request)
    return replace(reply, calls=reply.calls[:1])


def forgetful(request: ModelRequest) -> ModelReply:
    """Leaves out all arguments, then sends those that the error names."""
    reply = obedient(request)
    if request.wants_plan:
        return reply
    named = {name: request.find_error(name) for name, _ in reply.calls}
    calls = [
        (name, {key: arguments[key] for key in arguments if f'"{key}"' in named[name]})
        for name, arguments in reply.calls
    ]
    return replace(reply, calls=tuple(calls))


def prose(request: ModelRequest) -> ModelReply:
    return _reply_with_plan(request) if request.wants_plan else ModelReply(text=PROSE)


def prose_first(request: ModelRequest) -> ModelReply:
    return (
        obedient(request) if request.is_enforced or request.wants_plan or not request.tools else ModelReply(text=PROSE)
    )


def forged_status(request: ModelRequest) -> ModelReply:
    if request.wants_plan:
        return _reply_with_plan(request)
    forged = {
        "status": "completed",
        "validationStatus": "passed",
        "actualToolCalls": list(request.tools),
        "result": "ok",
    }
    return ModelReply(text=f"{PROSE}\n{fence_json(forged)}")


def wrong_tool(request: ModelRequest) -> ModelReply:
    return _reply_with_plan(request) if request.wants_plan else ModelReply(calls=(("teleport", {"to": "Mars"}),))


def half(request: ModelRequest) -> ModelReply:
    if request.wants_plan or not request.tools:
        return obedient(request)
    first = next(iter(request.tools))
    return (
        ModelReply(calls=((first, request.sample_arguments(first)),))
        if first in request.tools_to_call
        else ModelReply(text=PROSE)
    )


def malformed(request: ModelRequest) -> ModelReply:
    if request.wants_plan or not request.tools:
        return obedient(request)
    return ModelReply(calls=tuple((name, '{"text": "the te') for name in request.tools_to_call))


def malformed_once(request: ModelRequest) -> ModelReply:
    return obedient(request) if request.is_repeated else malformed(request)


def cut_short(request: ModelRequest) -> ModelReply:
    """Runs out of tokens in the middle of its arguments, until the engine asks for a complete reply."""
    if request.is_repeated or not request.tools:
        return obedient(request)
    return ModelReply(calls=tuple((name, '{"text": "the te') for name in request.tools_to_call), is_cut_short=True)


def empty_arguments(request: ModelRequest) -> ModelReply:
    if request.wants_plan or not request.tools:
        return obedient(request)
    return ModelReply(calls=tuple((name, {}) for name in request.tools_to_call))


def placeholders(request: ModelRequest) -> ModelReply:
    if request.wants_plan or not request.tools:
        return obedient(request)
    return ModelReply(
        calls=tuple((name, _placeholders(request.sample_arguments(name))) for name in request.tools_to_call)
    )


def _placeholders(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: f"<{key}>" if isinstance(value, str) else value for key, value in arguments.items()}


def never_ending(request: ModelRequest) -> ModelReply:
    if request.wants_plan:
        return _reply_with_plan(request)
    first = next(iter(request.tools), "think")
    return ModelReply(text="One more call.", calls=((first, request.sample_arguments(first)),))


def many_calls(request: ModelRequest) -> ModelReply:
    if request.wants_plan or not request.tools:
        return obedient(request)
    first = next(iter(request.tools))
    return ModelReply(calls=((first, request.sample_arguments(first)),) * MANY_CALLS)


def limited_once(request: ModelRequest) -> ModelReply:
    if request.number == 1:
        return ModelReply(status=429, message="slow down", headers={"Retry-After": "7"})
    return obedient(request)


def always_limited(request: ModelRequest) -> ModelReply:
    return ModelReply(status=429, message="slow down")


def failing_once(request: ModelRequest) -> ModelReply:
    return ModelReply(status=500, message="internal trouble") if request.number == 1 else obedient(request)


def breaking_off(request: ModelRequest) -> ModelReply:
    return ModelReply(text=PROSE * 100, breaks_off=True)


def breaking_off_once(request: ModelRequest) -> ModelReply:
    return breaking_off(request) if request.number == 1 else obedient(request)


def huge(request: ModelRequest) -> ModelReply:
    return ModelReply(text="x" * HUGE_BYTES)


def hanging(request: ModelRequest) -> ModelReply:
    return ModelReply(hangs=True)


def web_page(request: ModelRequest) -> ModelReply:
    return ModelReply(raw=b"<html><body>Sign in to the network</body></html>")


def refusing(request: ModelRequest) -> ModelReply:
    return ModelReply(is_refused=True)


MANNERS: dict[str, Manner] = {
    manner.name: manner
    for manner in (
        Manner("obedient", "calls what it must, with real arguments", obedient),
        Manner("prose only", "describes the calls and never makes one", prose, is_recoverable=False),
        Manner("prose first", "describes the calls until told that this does not count", prose_first),
        Manner(
            "forged status", "answers with JSON that says the step is completed", forged_status, is_recoverable=False
        ),
        Manner("wrong tool", "calls a tool that it was not offered", wrong_tool, is_recoverable=False),
        Manner("half", "calls the first of the required tools, then claims the rest", half, is_recoverable=False),
        Manner("malformed", "sends arguments that are no JSON", malformed, is_recoverable=False),
        Manner("malformed once", "sends arguments that are no JSON, and good ones when asked again", malformed_once),
        Manner("cut short", "runs out of tokens in the middle of its arguments once", cut_short),
        Manner("empty arguments", "calls everything with {}", empty_arguments, is_recoverable=False),
        Manner("placeholders", "fills in <text> and the like", placeholders, is_recoverable=False),
        Manner("never-ending", "never stops calling the first tool", never_ending, is_recoverable=False),
        Manner(
            "ten thousand calls",
            "calls the first tool ten thousand times in one answer",
            many_calls,
            is_recoverable=False,
        ),
        Manner("numbering", "writes numbers for the ids of steps", planning(number_steps)),
        Manner("one call an answer", "makes one call at a time, however many are due", one_call),
        Manner("prose plan first", "tells its plan, and sends it below the prose when asked again", told_plan),
        Manner(
            "wrong keys", "writes wrong keys in a plan, then those that the refusal names", planning(write_wrong_keys)
        ),
        Manner(
            "wrong keys twice",
            "writes wrong keys again after the refusal",
            planning(write_wrong_keys_twice),
            is_recoverable=False,
        ),
        Manner("forgets the schema", "calls without arguments, then with those that the error names", forgetful),
        Manner(
            "closed question",
            "answers a closed question until the refusal names the open one",
            obedient,
            answers_closed=True,
        ),
        Manner(
            "invents a condition",
            "writes a condition of another language, then as the refusal says",
            planning(invent_condition),
        ),
        Manner("fencing", "writes its plan and its calls into fences of Markdown", fenced),
        Manner("content filter", "is stopped by a content filter", refusing, needs_wire=True, is_recoverable=False),
        Manner("429 once", "is rate limited once and says when to come back", limited_once, needs_wire=True),
        Manner("429 always", "is rate limited and stays so", always_limited, needs_wire=True, is_recoverable=False),
        Manner("500 once", "fails once", failing_once, needs_wire=True),
        Manner(
            "breaks off",
            "closes the connection in the middle of every answer",
            breaking_off,
            needs_wire=True,
            is_recoverable=False,
        ),
        Manner(
            "breaks off once", "closes the connection in the middle of one answer", breaking_off_once, needs_wire=True
        ),
        Manner("50 MB", "sends fifty megabytes", huge, needs_wire=True, is_recoverable=False),
        Manner("hangs", "accepts the request and never answers", hanging, needs_wire=True, is_recoverable=False),
        Manner(
            "web page",
            "is a captive portal that answers everything with a page",
            web_page,
            needs_wire=True,
            is_recoverable=False,
        ),
    )
}

"""How models behave: each manner is a function from a request to a reply.

Most of them break plan-and-execute agents, and a few break HTTP clients. `MANNERS` is the table of all of them. Some
are habits of writing plans, which turn the plan that a double has for every goal into the one that it sends.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from tests.support.doubles.messages import PLAN_TOOL, Body, ModelReply, ModelRequest, fence_json

THREE_STEPS: Body = {
    "todoList": [
        {"id": "gather", "description": "find the records", "requiredTools": ["find"]},
        {"id": "record", "description": "find the details and write them down", "requiredTools": ["find", "note"]},
        {"id": "report", "description": "write the closing note", "requiredTools": ["note"]},
    ]
}
"""A plan in which every habit shows, with the tools of `Ledger`."""
WRONG_KEYS = {"requiredTools": "tools", "description": "task"}
_RIGHT_KEY = re.compile(r"'([^']+)' \(write '([^']+)'\)")
BROKEN = '{"text": "the te'
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


def number_steps(request: ModelRequest) -> Body:
    """Return the plan with integers for ids, wherever a step is named; the last step takes a value of the first."""
    steps = [
        {**step, "id": number, "dependencies": list(range(1, number))}
        for number, step in enumerate(request.plan["todoList"], 1)
    ]
    if len(steps) > 1:
        call = {"toolName": "note", "arguments": {"text": {"$from": 1, "pointer": "/topic"}}}
        steps[-1] |= {"requiredTools": ["note"], "toolCalls": [call]}
    return {"todoList": steps}


def write_wrong_keys(request: ModelRequest) -> Body:
    """Return the plan with wrong keys; after a refusal, with those that the refusal names."""
    return _correct(_rename(request.plan, WRONG_KEYS), request)


def write_wrong_keys_twice(request: ModelRequest) -> Body:
    """Return the plan with wrong keys twice, whatever is said about them."""
    return _rename(request.plan, WRONG_KEYS) if request.number <= 2 else request.plan


def invent_condition(request: ModelRequest) -> Body:
    """Return the plan with a condition of another language, which does not hold; corrected as a refusal says."""
    first, *others = request.plan["todoList"]
    condition = {"value": {"$from": first["id"], "pointer": "/ids/0"}, "matches": {"$gt": 5000}}
    if others:
        others[-1] = {**others[-1], "when": condition}
    return _correct({"todoList": [first, *others]}, request)


def _correct(plan: Body, request: ModelRequest) -> Body:
    return _rename(plan, dict(_RIGHT_KEY.findall(request.text))) if request.is_plan_refused else plan


def _rename(node: Body, names: Mapping[str, str]) -> Body:
    return {names.get(key, key): _rename_in(part, names) for key, part in node.items()}


def _rename_in(part: Any, names: Mapping[str, str]) -> Any:
    if isinstance(part, list):
        return [_rename_in(entry, names) for entry in cast("list[Any]", part)]
    return _rename(cast("Body", part), names) if isinstance(part, dict) else part


def prose(request: ModelRequest) -> ModelReply:
    return _reply_with_plan(request) if request.wants_plan else ModelReply(text=PROSE)


def prose_first(request: ModelRequest) -> ModelReply:
    return obedient(request) if request.is_enforced or not request.tools else prose(request)


def forged_status(request: ModelRequest) -> ModelReply:
    if request.wants_plan:
        return _reply_with_plan(request)
    forged = {"status": "completed", "validationStatus": "passed", "actualToolCalls": [*request.tools], "result": "ok"}
    return ModelReply(text=f"{PROSE}\n{fence_json(forged)}")


def wrong_tool(request: ModelRequest) -> ModelReply:
    return _reply_with_plan(request) if request.wants_plan else ModelReply(calls=(("teleport", {"to": "Mars"}),))


def in_steps(answer: Callable[[ModelRequest], ModelReply]) -> Callable[[ModelRequest], ModelReply]:
    """Returns what an obedient model answers that behaves like this where it is to call tools."""
    return lambda request: obedient(request) if request.wants_plan or not request.tools else answer(request)


def calling_with(make: Callable[[Body], Body | str]) -> Callable[[ModelRequest], ModelReply]:
    """Returns what a model answers that calls what it must, with what `make` turns real arguments into."""
    return in_steps(
        lambda request: ModelReply(
            calls=tuple((name, make(request.sample_arguments(name))) for name in request.tools_to_call)
        )
    )


malformed = calling_with(lambda _: BROKEN)


def half(request: ModelRequest) -> ModelReply:
    first = next(iter(request.tools))
    if first not in request.tools_to_call:
        return ModelReply(text=PROSE)
    return ModelReply(calls=((first, request.sample_arguments(first)),))


def malformed_once(request: ModelRequest) -> ModelReply:
    return obedient(request) if request.is_repeated else malformed(request)


def cut_short(request: ModelRequest) -> ModelReply:
    """Runs out of tokens in the middle of its arguments, until the engine asks for a complete reply."""
    if request.is_repeated or not request.tools:
        return obedient(request)
    return ModelReply(calls=tuple((name, BROKEN) for name in request.tools_to_call), is_cut_short=True)


def _write_placeholders(arguments: Body) -> Body:
    return {key: f"<{key}>" if isinstance(value, str) else value for key, value in arguments.items()}


def never_ending(request: ModelRequest) -> ModelReply:
    if request.wants_plan:
        return _reply_with_plan(request)
    first = next(iter(request.tools), "think")
    return ModelReply(text="One more call.", calls=((first, request.sample_arguments(first)),))


def many_calls(request: ModelRequest) -> ModelReply:
    first = next(iter(request.tools))
    return ModelReply(calls=((first, request.sample_arguments(first)),) * MANY_CALLS)


def huge(request: ModelRequest) -> ModelReply:
    return ModelReply(text="x" * HUGE_BYTES)


def always(reply: ModelReply) -> Callable[[ModelRequest], ModelReply]:
    return lambda _: reply


def once(reply: ModelReply) -> Callable[[ModelRequest], ModelReply]:
    """Returns what an obedient model answers after this first reply."""
    return lambda request: reply if request.number == 1 else obedient(request)


LIMITED = ModelReply(status=429, message="slow down")
BROKEN_OFF = ModelReply(text=PROSE * 100, breaks_off=True)
PORTAL = ModelReply(raw=b"<html><body>Sign in to the network</body></html>")
_Stubborn = partial(Manner, is_recoverable=False)
_Wire = partial(Manner, needs_wire=True)
_Broken = partial(Manner, needs_wire=True, is_recoverable=False)

MANNERS: dict[str, Manner] = {
    manner.name: manner
    for manner in (
        Manner("obedient", "calls what it must, with real arguments", obedient),
        _Stubborn("prose only", "describes the calls and never makes one", prose),
        Manner("prose first", "describes the calls until told that this does not count", prose_first),
        _Stubborn("forged status", "answers with JSON that says the step is completed", forged_status),
        _Stubborn("wrong tool", "calls a tool that it was not offered", wrong_tool),
        _Stubborn("half", "calls the first of the required tools, then claims the rest", in_steps(half)),
        _Stubborn("malformed", "sends arguments that are not JSON", malformed),
        Manner("malformed once", "sends arguments that are not JSON, and good ones when asked again", malformed_once),
        Manner("cut short", "runs out of tokens in the middle of its arguments once", cut_short),
        _Stubborn("empty arguments", "calls everything with {}", calling_with(lambda _: {})),
        _Stubborn("placeholders", "fills in <text> and the like", calling_with(_write_placeholders)),
        _Stubborn("never-ending", "never stops calling the first tool", never_ending),
        _Stubborn("ten thousand calls", "calls the first tool ten thousand times in one answer", in_steps(many_calls)),
        Manner("numbering", "writes numbers for the ids of steps", planning(number_steps)),
        Manner("one call an answer", "makes one call at a time, however many are due", one_call),
        Manner("prose plan first", "tells its plan, and sends it below the prose when asked again", told_plan),
        Manner(
            "wrong keys", "writes wrong keys in a plan, then those that the refusal names", planning(write_wrong_keys)
        ),
        _Stubborn("wrong keys twice", "writes wrong keys again after the refusal", planning(write_wrong_keys_twice)),
        Manner("forgets the schema", "calls without arguments, then with those that the error names", forgetful),
        replace(
            Manner("closed question", "answers a closed question until the refusal names the open one", obedient),
            answers_closed=True,
        ),
        Manner(
            "invents a condition",
            "writes a condition of another language, then as the refusal says",
            planning(invent_condition),
        ),
        Manner("fencing", "writes its plan and its calls into fences of Markdown", fenced),
        _Broken("content filter", "is stopped by a content filter", always(ModelReply(is_refused=True))),
        _Wire(
            "429 once",
            "is rate limited once and says when to come back",
            once(replace(LIMITED, headers={"Retry-After": "7"})),
        ),
        _Broken("429 always", "is rate limited and stays so", always(LIMITED)),
        _Wire("500 once", "fails once", once(ModelReply(status=500, message="internal trouble"))),
        _Broken("breaks off", "closes the connection in the middle of every answer", always(BROKEN_OFF)),
        _Wire("breaks off once", "closes the connection in the middle of one answer", once(BROKEN_OFF)),
        _Broken("50 MB", "sends fifty megabytes", huge),
        _Broken("hangs", "accepts the request and never answers", always(ModelReply(hangs=True))),
        _Broken("web page", "is a captive portal that answers everything with a page", always(PORTAL)),
    )
}

"""Starts executions, once for each key that a caller sends, and makes a plan of a question that has none."""

from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from planwarden.agent.common.canonical import check_depth, digest, exceeds
from planwarden.agent.common.errors import InvalidArguments, KeyConflict, KeyUsed, LimitExceeded, UsageError
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Path, leave_out_bindings
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.ports.store import StartRequest
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.api.limits import check_key, check_text
from planwarden.tools.builtin.human import MAX_ADDRESSEE_CHARS

PLAN_DIGITS = 16

Create = Callable[[StartRequest | None], Awaitable[ExecutionState]]
"""Starts or continues an execution for the request; None for a request whose key is stored already."""

STEP_ID = "ask"
MAX_MESSAGE_CHARS = 4_000
MAX_VALUES = 5_000
MAX_BYTES = 64 * 1024
"""Of the details, and of the form."""


def build_request(
    key: str | None, wish: dict[str, JsonValue], call: Mapping[str, object] | None = None
) -> StartRequest | None:
    """Return what the store keeps of a caller's wish: nothing without a key.

    A key that began a rehearsal does not stand for the real run.

    Raises:
        InvalidArguments: the key is not usable, or the wish is not JSON.
        LimitExceeded: the wish is nested too deeply.
    """
    for value in wish.values():
        check_depth(value)
    if key is None:
        return None
    check_key(key)
    described = {**wish, "rehearse": True} if call and call.get("rehearse") else wish
    return StartRequest(key=str(key), request=digest(described, context="start"))


def build_plan_request(start: StartOptions, plan: JsonValue, call: Mapping[str, object]) -> StartRequest | None:
    """Return what the store keeps of a plan and its inputs as the caller wrote them. Raises as `build_request`."""
    if start.key is None:
        # Without a key the plan is parsed first, which checks it.
        return None
    document = _join_inputs(plan, start)
    check_depth(document)
    return build_request(start.key, {"goal": start.goal, "plan": digest(document, context="plan")}, call)


def add_plan(
    request: StartRequest | None, start: StartOptions, plan: JsonValue, call: Mapping[str, object]
) -> StartRequest:
    """Return the request with the plan by which the store finds an unfinished run of the same plan.

    A rehearsal does not count as a second run of the plan, and warns of none.
    """
    if call.get("rehearse"):
        return request or StartRequest()
    # Only warnings come from it, and it is stored twice with every unfinished execution.
    digits = digest(_join_inputs(plan, start), context="plan")[:PLAN_DIGITS]
    return StartRequest(plan=digits, is_only=True) if request is None else replace(request, plan=digits)


async def start_once(
    engine: Engine, start: StartOptions, request: StartRequest | None, create: Create, *, thread_id: str | None = None
) -> ExecutionState:
    """Return the execution that the key started before, as it is now; without one, what `create` returns.

    `thread_id` is for requests to run what that thread has planned, perhaps under the same key.

    Raises:
        KeyConflict: the key belongs to another goal or plan.
    """
    if request is None or request.key is None:
        return await create(request)
    execution = await _find(engine, start.requester.principal, request.key, request.request, thread_id)
    if execution is not None and not _is_to_run(execution, thread_id):
        return execution
    try:
        return await create(request if execution is None else None)
    except (KeyUsed, UsageError):
        # The same request may have come twice at once, and the other one was faster.
        execution = await _find(engine, start.requester.principal, request.key, request.request, thread_id)
        if execution is None or _is_to_run(execution, thread_id):
            raise
        return execution


async def _find(engine: Engine, principal: str, key: str, request: str, thread_id: str | None) -> ExecutionState | None:
    earlier = await engine.store.find_start(principal, key)
    if earlier is None:
        return None
    is_same = earlier.request == request if thread_id is None else earlier.thread_id == thread_id
    if not is_same:
        raise KeyConflict(
            f"key {key!r} started execution {earlier.execution_id!r} (thread {earlier.thread_id!r}) with another goal "
            "or plan; get_execution shows that one, and another key starts this one",
            details={"executionId": earlier.execution_id, "threadId": earlier.thread_id},
        )
    return await engine.find(earlier.execution_id)


def _is_to_run(execution: ExecutionState, thread_id: str | None) -> bool:
    """Return True when the key made a plan that waits, and the request is to run it."""
    return thread_id is not None and execution.status == "planned"


def _join_inputs(plan: JsonValue, start: StartOptions) -> JsonValue:
    return [plan, dict(start.inputs)] if start.inputs else plan


def build_question_plan(
    message: str, details: JsonValue, form: JsonValue, addressee: str | None
) -> dict[str, JsonValue]:
    """Return the plan that asks for a confirmation, or with a form for an answer that fits it.

    Raises:
        InvalidArguments: a text is empty, the form is not a JSON Schema of an object, or something is not JSON.
        LimitExceeded: a text, the details or the form are too large.
    """
    check_text(message, "message", MAX_MESSAGE_CHARS)
    if addressee is not None:
        check_text(addressee, "addressee", MAX_ADDRESSEE_CHARS)
    for name, value in (("details", details), ("form", form)):
        _check_value(value, name)
    arguments: dict[str, JsonValue] = {"action" if form is None else "message": message}
    if form is not None:
        _check_form(form)
        arguments["form"] = form
    arguments |= {name: value for name, value in (("details", details), ("addressee", addressee)) if value is not None}
    tool = "displayConfirmation" if form is None else "requestInput"
    step: JsonValue = {
        "id": STEP_ID,
        "description": message,
        "requiredTools": [tool],
        "toolCalls": [{"toolName": tool, "arguments": arguments}],
    }
    return {"todoList": [step]}


def _check_value(value: JsonValue, name: str) -> None:
    check_depth(value)
    if exceeds(value, MAX_VALUES, MAX_BYTES):
        raise LimitExceeded(f"'{name}' has more than {MAX_VALUES} values or {MAX_BYTES // 1024} KiB")
    bound: list[Path] = []
    leave_out_bindings(value, bound)
    if bound:
        raise InvalidArguments(f"'{name}' has a '$from' or '$text', which only plans have; send the values themselves")


def _check_form(form: JsonValue) -> None:
    if not isinstance(form, dict) or form.get("type") != "object":
        raise InvalidArguments("'form' must be a JSON Schema with type 'object' and a property for each answer")
    try:
        Schema(form)
    except ValueError as error:
        raise InvalidArguments(f"'form' is not a usable JSON Schema: {str(error).splitlines()[0]}") from None

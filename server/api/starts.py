"""Starts executions, once for each key that a caller sends with the request."""

from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from planwarden.agent.common.canonical import check_depth, digest
from planwarden.agent.common.errors import KeyConflict, KeyUsed, UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.state import ExecutionState
from planwarden.agent.ports.store import StartRequest
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.limits import check_key

PLAN_DIGITS = 16

Start = Callable[[StartRequest | None], Awaitable[ExecutionState]]
"""Starts or continues an execution for the request; None for a request whose key is stored already."""


class Starts:
    """Finds what the keys of one engine's principals have started."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def build_goal_request(self, key: str | None, goal: str, call: Mapping[str, object]) -> StartRequest | None:
        """What the store keeps of a goal: nothing without a key. Raises `InvalidArguments`."""
        return _build_request(key, {"goal": goal, **_describe_run(call)})

    def build_thread_request(self, key: str | None, thread_id: str) -> StartRequest | None:
        """What the store keeps of the wish to run what a thread has planned: nothing without a key."""
        return _build_request(key, {"thread": thread_id})

    def build_retry_request(
        self,
        key: str | None,
        thread_id: str,
        *,
        from_step: str | None,
        inputs: Mapping[str, JsonValue] | None,
        plan: JsonValue,
    ) -> StartRequest:
        """What the store keeps of the wish to go on from a thread's last execution. Raises as `build_plan_request`."""
        given: JsonValue = None if inputs is None else dict(inputs)
        check_depth([plan, given])
        asked: JsonValue = {"retry": thread_id, "fromStep": from_step, "inputs": given, "plan": plan}
        return _build_request(key, asked) or StartRequest()

    def build_plan_request(
        self,
        key: str | None,
        goal: str | None,
        plan: JsonValue,
        inputs: Mapping[str, JsonValue] | None,
        call: Mapping[str, object],
    ) -> StartRequest:
        """What the store keeps of a plan and its inputs as the caller wrote them, whether or not it can run.

        A rehearsal is no second run of the plan, and warns of none.

        Raises:
            InvalidArguments: the key is not usable, or the plan is not JSON.
            LimitExceeded: the plan is nested too deeply.
        """
        given: JsonValue = [plan, dict(inputs)] if inputs else plan
        request = None
        if key is not None:
            # Without a key the plan is parsed first, which checks it.
            check_depth([plan, dict(inputs or {})])
            asked: JsonValue = {"goal": goal, "plan": digest(given, context="plan"), **_describe_run(call)}
            request = _build_request(key, asked)
        if call.get("rehearse"):
            return request or StartRequest()
        # Only warnings come from it, and it is stored twice with every unfinished execution.
        plan_digits = digest(given, context="plan")[:PLAN_DIGITS]
        return StartRequest(plan=plan_digits, is_only=True) if request is None else replace(request, plan=plan_digits)

    def build_saved_request(
        self, key: str | None, name: str, inputs: Mapping[str, JsonValue] | None, call: Mapping[str, object]
    ) -> StartRequest | None:
        """What the store keeps of the wish to run a saved plan: nothing without a key.

        The content of the plan is no part of it: who sends a request again wants what the first one started.

        Raises:
            InvalidArguments: the key is not usable, or the inputs are not JSON.
            LimitExceeded: the inputs are nested too deeply.
        """
        given: JsonValue = dict(inputs or {})
        if key is not None:
            check_depth(given)
        return _build_request(key, {"savedPlan": name, "inputs": given, **_describe_run(call)})

    async def start_once(
        self, principal: str, request: StartRequest | None, start: Start, *, thread_id: str | None = None
    ) -> ExecutionState:
        """Returns the execution that the key started before, as it is now; without one, what `start` returns.

        `thread_id` is for requests to run what that thread has planned, perhaps under the same key.

        Raises:
            KeyConflict: the key stands for another goal or plan.
        """
        if request is None or request.key is None:
            return await start(request)
        known = await self._find(principal, request.key, request.request, thread_id)
        if known is not None and not _is_to_run(known, thread_id):
            return known
        try:
            return await start(request if known is None else None)
        except (KeyUsed, UsageError):
            # The same request may have come twice at once, and the other one was faster.
            known = await self._find(principal, request.key, request.request, thread_id)
            if known is None or _is_to_run(known, thread_id):
                raise
            return known

    async def _find(self, principal: str, key: str, request: str, thread_id: str | None) -> ExecutionState | None:
        found = await self._engine.store.find_start(principal, key)
        if found is None:
            return None
        is_same = found.request == request if thread_id is None else found.thread_id == thread_id
        if not is_same:
            raise KeyConflict(
                f"key {key!r} started execution {found.execution_id!r} (thread {found.thread_id!r}) with another goal "
                "or plan; get_execution shows that one, and another key starts this one",
                details={"executionId": found.execution_id, "threadId": found.thread_id},
            )
        return await self._engine.find(found.execution_id)


def _is_to_run(execution: ExecutionState, thread_id: str | None) -> bool:
    """True when the key made a plan that waits, and the request is to run it."""
    return thread_id is not None and execution.status == "planned"


def _describe_run(call: Mapping[str, object]) -> dict[str, JsonValue]:
    """A key that began a rehearsal does not stand for the real run."""
    return {"rehearse": True} if call.get("rehearse") else {}


def _build_request(key: str | None, asked: JsonValue) -> StartRequest | None:
    if key is None:
        return None
    check_key(key)
    return StartRequest(key=str(key), request=digest(asked, context="start"))

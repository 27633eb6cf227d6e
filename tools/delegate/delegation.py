"""`delegate_to_agent`: a goal handed to another agent over MCP, waited for durably, its questions asked as ours.

The agent's handle is stored before anything else happens with it, as a question to the clock; from then on the goal is only
looked at, as often as needed, by whatever process goes on with the execution. An agent that was told the goal and whose
answer never came is an unknown outcome: nobody starts the goal a second time by themselves. Approving our call approves
nothing the agent does: what it asks of a person is asked here, in its name, and what is decided here goes back to it as a
caller's word, which counts there as much as that agent lets it.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import OutcomeUnknown, ToolError
from planwarden.agent.core.prompts import DELEGATE
from planwarden.agent.core.state import Call, ExecutionState
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.tools.base import Tool, define
from planwarden.tools.delegate.agent import NOTHING, AgentNotAsked, AgentRefused, AgentUnreachable, RemoteAgent
from planwarden.tools.delegate.chain import CHAIN, DEPTH, MAX_DEPTH
from planwarden.tools.delegate.child import ChildView, DelegatedGoal, read_view
from planwarden.tools.delegate.children import watch
from planwarden.tools.downstream.agents import DelegatingEngine
from planwarden.tools.downstream.call import IDEMPOTENCY_KEY
from planwarden.tools.downstream.config import ServerConfig, ServerSettings
from planwarden.tools.downstream.connection import ServerConnection
from planwarden.tools.downstream.elicitations import ServerElicitation
from planwarden.tools.downstream.in_flight import Answer

logger = logging.getLogger(__name__)

LOOK_S = 20.0
"""One look at an agent that works: so long it is watched before the wait is stored again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
AGAIN_S = 0.1
MAX_FAILURES = 120
UNREACHABLE_S = 10.0
CANCEL_S = 5.0
_GOAL_KEYS = ("goal", "task", "prompt", "query", "input", "message", "text")


class DelegationTool:
    """The tool over all servers that are marked as agents."""

    def __init__(self, configs: Sequence[ServerConfig]) -> None:
        self._settings = {config.name: config.settings for config in configs if config.settings.agent}
        self._link: Callable[[str], ServerConnection] | None = None
        self._schema: Callable[[str, str], dict[str, JsonValue] | None] | None = None

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(self._settings)

    def over(
        self, link: Callable[[str], ServerConnection], schema: Callable[[str, str], dict[str, JsonValue] | None]
    ) -> None:
        """Where the agents are reached, and how the arguments of a server's tool look."""
        self._link, self._schema = link, schema

    def tool(self) -> Tool:
        """The tool as plans see it."""
        definition = ToolDefinition(
            name=DELEGATE,
            description="Hand a goal to another agent and wait for what comes of it; its questions to people are asked here.",
            input_schema={
                "type": "object",
                "properties": {
                    "agent": {"type": "string", "enum": list[JsonValue](self._settings)},
                    "goal": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 20_000,
                        "description": "In prose, complete.",
                    },
                },
                "required": ["agent", "goal"],
                "additionalProperties": False,
            },
            capabilities=("delegation",),
            risk="dangerous",
            effect="effect",
            source="builtin",
        )
        return Tool(define(definition), self.call, self.resume)

    async def call(self, arguments: dict[str, JsonValue], context: CallContext) -> JsonValue | Suspend:
        """Tell the agent the goal; gives the wait for it, with its handle.

        Raises:
            ToolError: it was not told, or refused.
            OutcomeUnknown: it may have been told.
        """
        agent, settings = self._agent(str(arguments["agent"]))
        chain = (*context.chain, context.execution_id)
        if len(chain) > MAX_DEPTH:
            raise ToolError(f"this goal was delegated {MAX_DEPTH} times already; nothing was sent")
        spent = [name for name, left in context.left.items() if left <= 0]
        if spent:
            raise ToolError(f"nothing is left of the budget of {spent[0]}; nothing was sent")
        meta: dict[str, JsonValue] = {
            IDEMPOTENCY_KEY: context.idempotency_key,
            DEPTH: len(chain),
            CHAIN: list[JsonValue](chain),
        }
        # How its arguments look is known once it was listed.
        await agent.ready()
        given = self._arguments(agent, settings, str(arguments["goal"]), context.left)
        try:
            answer = await agent.call(settings.run_tool, given, context.execution_id, meta=meta)
        except (AgentNotAsked, AgentRefused):
            raise
        except AgentUnreachable as error:
            text = f"{error.message}. It may be working on the goal, and nobody knows its handle"
            raise OutcomeUnknown(text) from None
        view = read_view(answer)
        if view.threadId is None:
            return answer
        return _waits(DelegatedGoal(agent=agent.name, thread_id=view.threadId), AGAIN_S)

    async def resume(self, payload: JsonValue, decision: JsonValue, context: CallContext) -> JsonValue | Suspend:
        """Look at the agent's execution, after telling it what was decided here.

        Raises:
            ToolError: it ended without success.
            OutcomeUnknown: it cannot be reached any more.
        """
        child = DelegatedGoal.model_validate(payload)
        try:
            found = await self._decided(child, decision, context)
            return found if found is not None else await self._watched(child, context)
        except AgentUnreachable as error:
            if child.failures >= MAX_FAILURES:
                text = f"{error.message}. What becomes of its thread {child.thread_id!r} is not known here"
                raise OutcomeUnknown(text) from None
            logger.warning("%s", error.message)
            return _waits(
                child.model_copy(update={"failures": child.failures + 1, "suspension_id": None}), UNREACHABLE_S
            )

    async def view(self, child: DelegatedGoal, execution_id: str) -> ChildView:
        """The agent's execution as it is now. Raises `AgentUnreachable` or `AgentRefused`."""
        agent, settings = self._agent(child.agent)
        return read_view(await agent.call(settings.get_tool, {"threadId": child.thread_id}, execution_id))

    def has_children(self, execution: ExecutionState) -> bool:
        """True when another agent may still be working for the execution."""
        return bool(children(execution))

    async def watch(self, executions: DelegatingEngine) -> None:
        """Close each open question that its agent does not ask any more. Runs until it is cancelled."""
        await watch(executions, self)

    async def cancel(self, execution: ExecutionState) -> None:
        """Cancel what other agents do for an execution that is over; what cannot be reached is logged."""
        for child in children(execution):
            try:
                agent, settings = self._agent(child.agent)
                given: dict[str, JsonValue] = {"threadId": child.thread_id}
                with anyio.move_on_after(CANCEL_S, shield=True):
                    await agent.call(settings.cancel_tool, given, execution.execution_id)
            except ToolError as error:
                logger.warning("thread %r was not cancelled: %s", child.thread_id, error.message)

    async def _decided(self, child: DelegatedGoal, decision: JsonValue, context: CallContext) -> Suspend | None:
        """Tell the agent what was decided about its question; gives the question again when that did not count."""
        asked = (await self.view(child, context.execution_id)).find(child.suspension_id)
        if asked is None or not isinstance(decision, dict) or "approved" not in decision:
            return None
        approved = decision.get("approved") is True
        if approved and (not child.is_whole or asked.digest != child.digest):
            return asked.suspend(child)
        agent, settings = self._agent(child.agent)
        said: dict[str, JsonValue] = {
            key: decision[key] for key in ("approved", "reason", "content") if key in decision
        }
        given: dict[str, JsonValue] = {
            "threadId": child.thread_id,
            "suspensionId": asked.suspensionId,
            "decision": said,
        }
        if "waitSeconds" in self._takes(agent, settings.resume_tool):
            given["waitSeconds"] = 0
        try:
            await agent.call(settings.resume_tool, given, context.execution_id, decided=_confirming(said))
        except AgentRefused as error:
            # Somebody else was faster, or it does not take the answer: what it says next decides.
            logger.warning("%s", error.message)
        left = (await self.view(child, context.execution_id)).find(asked.suspensionId)
        return None if left is None else left.suspend(child.model_copy(update={"refused": approved}))

    async def _watched(self, child: DelegatedGoal, context: CallContext) -> JsonValue | Suspend:
        """Look until it asks, ends, or has worked for long enough to store the wait again."""
        pause_s, until = FIRST_PAUSE_S, time.monotonic() + LOOK_S
        known = child.model_copy(update={"failures": 0, "suspension_id": None, "refused": False})
        while True:
            view = await self.view(child, context.execution_id)
            match view.state:
                case "completed":
                    return _result(child, view)
                case "asks" if view.asked is not None:
                    return view.asked.suspend(known)
                case "thinks":
                    await self._given_up(child, context)
                    raise ToolError(
                        f"agent {child.agent!r} wants its caller to think for it; give it a model of its own"
                    )
                case "ended":
                    raise ToolError(f"agent {child.agent!r} did not reach the goal: its execution is {view.trouble}")
                case _:
                    pass
            if time.monotonic() >= until:
                return _waits(known, AGAIN_S)
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _given_up(self, child: DelegatedGoal, context: CallContext) -> None:
        agent, settings = self._agent(child.agent)
        await agent.call(settings.cancel_tool, {"threadId": child.thread_id}, context.execution_id)

    def _agent(self, name: str) -> tuple[RemoteAgent, ServerSettings]:
        settings = self._settings.get(name)
        if settings is None or self._link is None:
            raise AgentNotAsked(f"there is no agent {name!r} any more; nothing was sent")
        return RemoteAgent(self._link(name)), settings

    def _arguments(
        self, agent: RemoteAgent, settings: ServerSettings, goal: str, left: Mapping[str, float]
    ) -> dict[str, JsonValue]:
        """What the agent's run tool takes of a goal, of not waiting, and of what is left of our budgets."""
        known = self._takes(agent, settings.run_tool)
        given: dict[str, JsonValue] = {next((key for key in _GOAL_KEYS if key in known), "goal"): goal}
        if "waitSeconds" in known:
            given["waitSeconds"] = 0
        if "options" in known:
            options: dict[str, JsonValue] = {"waitSeconds": 0}
            if left:
                options["budgets"] = {
                    name: rest if name == "seconds" else max(1, int(rest)) for name, rest in left.items()
                }
            given["options"] = options
        return given

    def _takes(self, agent: RemoteAgent, tool: str) -> Collection[str]:
        """The names of the arguments of an agent's tool; none when it is not listed."""
        schema = self._schema(agent.name, tool) if self._schema is not None else None
        properties = (schema or {}).get("properties")
        return properties.keys() if isinstance(properties, dict) else ()


def children(execution: ExecutionState) -> tuple[DelegatedGoal, ...]:
    """What other agents may still be doing for the execution."""
    found: dict[str, DelegatedGoal] = {}
    for asked in execution.suspensions.values():
        question = asked.question
        if question.tool_name != DELEGATE or question.call_id is None or not isinstance(question.resume_payload, dict):
            continue
        call: Call = execution.call(question.call_id)
        if call.status != "succeeded":
            found[question.call_id] = DelegatedGoal.model_validate(question.resume_payload)
    return tuple(found.values())


def _waits(child: DelegatedGoal, seconds: float) -> Suspend:
    return Suspend(
        message=f"waits for agent {child.agent!r} (thread {child.thread_id[:64]!r})",
        addressee="clock",
        timeout_s=seconds,
        resume_payload=child.model_dump(mode="json"),
    )


def _result(child: DelegatedGoal, view: ChildView) -> JsonValue:
    usage: JsonValue = {**view.usage}
    return {
        "agent": child.agent,
        "threadId": child.thread_id,
        "status": "completed",
        "output": view.output,
        "usage": usage,
    }


def _confirming(said: Mapping[str, JsonValue]) -> Callable[[ServerElicitation], Answer]:
    """Answers an agent that asks its caller's person, in a form with a `decision`, what was decided here."""

    def answer(asked: ServerElicitation) -> Answer:
        properties = (asked.form or {}).get("properties")
        if not isinstance(properties, dict) or "decision" not in properties:
            return NOTHING
        content = said.get("content")
        filled = content if isinstance(content, dict) else {}
        verdict = "approve" if said.get("approved") is True else "reject"
        return {"action": "accept", "content": {**filled, "decision": verdict}}

    return answer

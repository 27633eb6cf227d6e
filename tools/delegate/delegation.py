"""`delegate_to_agent`: hands a goal to another agent over MCP, waits for it durably, and asks its questions here.

The agent's handle for the goal (its thread id) is stored at once, in a suspension with a timer. From then on, the
process that runs the execution only polls the agent. If the agent got the goal but did not answer, the outcome is
unknown, and planwarden never starts the goal again by itself. A person who approves our call approves nothing that the
agent does later: its own questions are asked here, under its name, and a person here answers them. The agent gets the
answer from us, its caller, and gives it the same weight as any other caller's decision.
"""

import logging
import time
from collections.abc import Mapping
from functools import partial

import anyio
from pydantic import JsonValue

from planwarden.agent.common.errors import OutcomeUnknown, PlanwardenError, ToolError
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.prompts import DELEGATE
from planwarden.agent.core.tool import CallContext, Suspend, ToolDefinition
from planwarden.agent.runtime.engine import Engine
from planwarden.agent.runtime.log_reader import list_open_questions
from planwarden.tools.base import Tool, build_object_schema, define
from planwarden.tools.delegate.agent import AgentNotAsked, AgentRefused, AgentUnreachable, RemoteAgent
from planwarden.tools.delegate.child import CHAIN, DEPTH, MAX_DEPTH, ChildView, DelegatedGoal, find_open_goals
from planwarden.tools.downstream.call import IDEMPOTENCY_KEY
from planwarden.tools.downstream.elicitation import Answer, ServerElicitation
from planwarden.tools.downstream.in_flight_calls import CANCEL
from planwarden.tools.downstream.servers import DownstreamServers

logger = logging.getLogger(__name__)

POLL_S = 20.0
"""How long a process polls a working agent before it stores a new wait in the log."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
STORED_WAIT_S = 0.1
MAX_FAILURES = 120
MAX_SETTLED = 500
"""How many questions in a row an agent may settle itself; each is a row of the log, and rings somebody's phone."""
UNREACHABLE_S = 10.0
ANSWER_S = 5.0
"""How long an agent may take to answer a request whose answer no execution waits for."""
WATCH_S = 2.0
_PLANWARDENS_KEYS = {"goal", "threadId", "key"}
"""Arguments by which we recognise a planwarden's `run_goal`; a `key` alone may mean anything."""
_GOAL_KEYS = ("goal", "task", "prompt", "query", "input", "message", "text")


class DelegationTool:
    """The tool `delegate_to_agent`, over all servers that the operator marked as agents."""

    def __init__(self, servers: DownstreamServers) -> None:
        self._servers = servers
        self._agents = [config.name for config in servers.configs if config.settings.agent]

    def tool(self) -> Tool:
        """Return the tool as plans see it."""
        definition = ToolDefinition(
            name=DELEGATE,
            description=(
                "Hand a goal to another agent and wait for what comes of it; its questions to people are asked here."
            ),
            input_schema=build_object_schema(
                {
                    "agent": {"type": "string", "enum": list[JsonValue](self._agents)},
                    "goal": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 20_000,
                        "description": "In prose, complete.",
                    },
                },
                *("agent", "goal"),
            ),
            capabilities=("delegation",),
            risk="dangerous",
            effect="effect",
            source="builtin",
            # Each request to an agent has a limit of its own. An agent that is silent has not failed.
            timeout_s=None,
        )
        return Tool(define(definition), self.call, self.resume)

    async def call(self, arguments: dict[str, JsonValue], context: CallContext) -> JsonValue | Suspend:
        """Hand the goal to the agent. Return its answer, or a suspension that stores the goal's handle and waits.

        Raises:
            ToolError: the agent did not get the goal, or refused it.
            OutcomeUnknown: the agent may have got the goal, and nobody here knows its handle.
        """
        agent = self._find_agent(str(arguments["agent"]))
        chain = (*context.chain, context.execution_id)
        if len(chain) > MAX_DEPTH:
            raise ToolError(f"this goal was delegated {MAX_DEPTH} times already; nothing was sent")
        exhausted = [name for name, amount in context.left.items() if amount <= 0]
        if exhausted:
            raise ToolError(f"nothing is left of the budget of {exhausted[0]}; nothing was sent")
        meta: dict[str, JsonValue] = {
            IDEMPOTENCY_KEY: context.idempotency_key,
            DEPTH: len(chain),
            CHAIN: list[JsonValue](chain),
        }
        # Connect first: the arguments that the tool takes are known only once the server has listed its tools.
        await agent.connect()
        goal_arguments = self._build_arguments(agent, str(arguments["goal"]), context)
        run_tool, check = agent.settings.run_tool, context.confirm_lease
        try:
            answer = await agent.call(run_tool, goal_arguments, context.execution_id, meta=meta, check=check)
        except (AgentNotAsked, AgentRefused):
            raise
        except AgentUnreachable as error:
            text = f"{error.message}. It may be working on the goal, and nobody knows its handle"
            raise OutcomeUnknown(text) from None
        view = ChildView.read(answer)
        if view.threadId is None:
            if isinstance(answer, dict) and answer.get("threadId") is not None:
                raise OutcomeUnknown(f"what agent {agent.name!r} says about its work on the goal cannot be read")
            return answer
        return DelegatedGoal(agent=agent.name, thread_id=view.threadId).wait(STORED_WAIT_S)

    async def resume(self, payload: JsonValue, decision: JsonValue, context: CallContext) -> JsonValue | Suspend:
        """Send the decision to the agent, then poll its execution. Return the result, or what to wait for next.

        Raises:
            ToolError: the execution ended without success.
            OutcomeUnknown: the agent could not be reached `MAX_FAILURES` times in a row, or settled too many questions.
        """
        child = DelegatedGoal.model_validate(payload)
        if child.suspension_id is not None:
            is_answer = isinstance(decision, dict) and "approved" in decision
            child = child.model_copy(update={"settled": 0 if is_answer else child.settled + 1})
        if child.settled > MAX_SETTLED:
            text = (
                f"agent {child.agent!r} asked {child.settled} questions and settled each before anybody here answered"
            )
            raise OutcomeUnknown(text)
        try:
            question = await self._send_decision(child, decision, context)
            return question if question is not None else await self._poll(child, context)
        except AgentUnreachable as error:
            if child.failures >= MAX_FAILURES:
                text = f"{error.message}. The outcome of its thread {child.thread_id!r} is unknown here"
                raise OutcomeUnknown(text) from None
            logger.warning("%s", error.message)
            child = child.model_copy(update={"failures": child.failures + 1, "suspension_id": None})
            return child.wait(UNREACHABLE_S)

    async def _view(self, child: DelegatedGoal, execution_id: str) -> ChildView:
        """Return the agent's execution as it is now. Raises `AgentUnreachable` or `AgentRefused`.

        An answer that does not describe the execution counts as `AgentUnreachable`: a later answer may describe it.
        """
        agent = self._find_agent(child.agent)
        answer = await agent.call(agent.settings.get_tool, {"threadId": child.thread_id}, execution_id)
        view = ChildView.read(answer)
        if view.status is None or view.threadId not in (None, child.thread_id):
            raise AgentUnreachable(f"agent {child.agent!r} did not describe its thread {child.thread_id!r}")
        return view

    async def watch(self, engine: Engine) -> None:
        """Close the open suspensions that their agents have settled. Look every `WATCH_S` seconds, until cancelled."""
        while True:
            await anyio.sleep(WATCH_S)
            try:
                await self._close_settled_questions(engine)
            except PlanwardenError as error:
                logger.debug("%s", error.message)
            # As in the engine's scheduler: one bad row, or an engine that just closed, must not end the process.
            except Exception:
                logger.exception("watching delegated suspensions failed")

    async def _close_settled_questions(self, engine: Engine) -> None:
        """Close open suspensions that their agents have settled; each closes only once, whatever other processes do."""
        for row in await list_open_questions(engine.store):
            execution = await engine.find(row.execution_id)
            suspension = execution.suspensions.get(row.suspension_id)
            if suspension is None or not suspension.is_open or suspension.question.kind != "delegated":
                continue
            child = DelegatedGoal.model_validate(suspension.question.resume_payload)
            try:
                with anyio.fail_after(ANSWER_S):
                    view = await self._view(child, execution.execution_id)
            except (PlanwardenError, TimeoutError) as error:
                logger.debug("%s", error)
                continue
            if view.threadId == child.thread_id and view.find(child.suspension_id) is None:
                await engine.withdraw(execution, row.suspension_id, f"it was settled at agent {child.agent!r}")

    async def cancel(self, execution: ExecutionState) -> None:
        """Cancel the goals that other agents still work on for a finished execution, in `ANSWER_S` each; log errors."""
        for child in find_open_goals(execution):
            try:
                with anyio.move_on_after(ANSWER_S, shield=True):
                    await self._cancel_goal(child, execution.execution_id)
            except ToolError as error:
                logger.warning("thread %r was not cancelled: %s", child.thread_id, error.message)

    async def _send_decision(self, child: DelegatedGoal, decision: JsonValue, context: CallContext) -> Suspend | None:
        """Send the agent the decision on its question. Return the question if it must be asked again, else None."""
        question = (await self._view(child, context.execution_id)).find(child.suspension_id)
        if question is None or not isinstance(decision, dict) or "approved" not in decision:
            return None
        approved = decision.get("approved") is True
        if approved and (not child.is_whole or question.fingerprint != child.digest):
            return question.suspend(child, note="It changed there after you approved it, so nothing was sent.")
        agent = self._find_agent(child.agent)
        answer: JsonValue = {key: decision[key] for key in ("approved", "reason", "content") if key in decision}
        more: dict[str, JsonValue] = {"waitSeconds": 0, **({"digest": question.digest} if approved else {})}
        names = self._servers.list_arguments(agent.name, agent.settings.resume_tool)
        try:
            await agent.call(
                agent.settings.resume_tool,
                {
                    "threadId": child.thread_id,
                    "suspensionId": question.suspensionId,
                    "decision": answer,
                    **{name: value for name, value in more.items() if name in names},
                },
                context.execution_id,
                check=context.confirm_lease,
                answer_elicitation=partial(_answer_elicitation, answer),
            )
        except AgentRefused as error:
            # Somebody else decided first, or the agent does not accept the answer. The view read below shows which.
            logger.warning("%s", error.message)
        again = (await self._view(child, context.execution_id)).find(question.suspensionId)
        return None if again is None else again.suspend(child.model_copy(update={"refused": approved}))

    async def _poll(self, child: DelegatedGoal, context: CallContext) -> JsonValue | Suspend:
        """Poll, and return the result or the agent's question; after `POLL_S` seconds, a wait to store instead."""
        pause_s, until = FIRST_PAUSE_S, time.monotonic() + POLL_S
        polled = child.model_copy(update={"failures": 0, "suspension_id": None, "refused": False})
        while True:
            view = await self._view(child, context.execution_id)
            match view.state:
                case "completed":
                    facts: dict[str, JsonValue] = {"agent": child.agent, "threadId": child.thread_id}
                    return {**facts, "status": "completed", "output": view.output, "usage": {**view.usage}}
                case "asks" if view.open_question is not None:
                    return view.open_question.suspend(polled)
                case "thinks":
                    await self._cancel_goal(child, context.execution_id)
                    raise ToolError(
                        f"agent {child.agent!r} wants its caller to think for it; give it a model of its own"
                    )
                case "ended":
                    raise ToolError(f"agent {child.agent!r} did not reach the goal: its execution is {view.failure}")
                case _:
                    pass
            if time.monotonic() >= until:
                return polled.wait(STORED_WAIT_S)
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _cancel_goal(self, child: DelegatedGoal, execution_id: str) -> None:
        agent = self._find_agent(child.agent)
        await agent.call(agent.settings.cancel_tool, {"threadId": child.thread_id}, execution_id)

    def _find_agent(self, name: str) -> RemoteAgent:
        if name not in self._agents:
            raise AgentNotAsked(f"there is no longer an agent {name!r}; nothing was sent")
        return RemoteAgent(self._servers.connection(name))

    def _build_arguments(self, agent: RemoteAgent, goal: str, context: CallContext) -> dict[str, JsonValue]:
        """Return the arguments for the agent's run tool: the goal, a waiting time of 0, and the rest of our budgets.

        If the agent is a planwarden, it also gets the call's key, so that a repeated call finds the same execution.
        """
        names, caps = self._servers.list_arguments(agent.name, agent.settings.run_tool), context.left
        arguments: dict[str, JsonValue] = {next((key for key in _GOAL_KEYS if key in names), "goal"): goal}
        if names >= _PLANWARDENS_KEYS and context.idempotency_key.isprintable():
            arguments["key"] = context.idempotency_key
        if "waitSeconds" in names:
            arguments["waitSeconds"] = 0
        if "options" in names:
            budgets: JsonValue = {name: rest if name == "seconds" else max(1, int(rest)) for name, rest in caps.items()}
            arguments["options"] = {"waitSeconds": 0, **({"budgets": budgets} if caps else {})}
        return arguments


def _answer_elicitation(decision: Mapping[str, JsonValue], elicitation: ServerElicitation) -> Answer:
    """Answer a form that has a `decision` field, which marks a question meant for a person; cancel all others."""
    properties = (elicitation.form or {}).get("properties")
    if not isinstance(properties, dict) or "decision" not in properties:
        return CANCEL
    content = decision.get("content")
    verdict = "approve" if decision.get("approved") is True else "reject"
    return {"action": "accept", "content": {**(content if isinstance(content, dict) else {}), "decision": verdict}}

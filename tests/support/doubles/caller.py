"""The manners without a wire format: an assistant that answers the suspensions addressed to the caller."""

import re

import planwarden
from planwarden.agent.common.errors import AlreadyAnswered, UsageError
from planwarden.agent.common.struct import JsonValue
from tests.support.doubles.manners import Manner
from tests.support.doubles.messages import PLAN_TOOL, Body, ModelReply, ModelRequest, find_requested_tools
from tests.support.doubles.server import PLAN

MAX_ANSWERS = 40


async def answer_all(
    warden: planwarden.Warden, execution: planwarden.Execution, manner: Manner, plan: Body | None = None
) -> planwarden.Execution:
    """Answers until no question is addressed to the caller, or `MAX_ANSWERS` were given.

    After a refused answer the caller tries once more, with the reason in the prompt; then it gives up.
    """
    closed_id: str | None = None
    refusal: str | None = None
    for number in range(1, MAX_ANSWERS + 1):
        execution = await warden.get_execution(execution.thread_id)
        question = find_question(execution)
        if question is None:
            break
        content = _build_content(manner.answer(_build_request(question, number, plan or PLAN, refusal)))
        question_id = question.suspension_id
        if manner.answers_closed and closed_id is not None:
            question_id = await _learn_open_question(warden, execution.thread_id, closed_id, content)
        try:
            await warden.submit_answer(execution.thread_id, question_id, content)
            closed_id, refusal = question_id, None
        except UsageError as error:
            if refusal is not None:
                break
            refusal = error.message
    return await warden.get_execution(execution.thread_id)


def find_question(execution: planwarden.Execution) -> planwarden.Suspension | None:
    return next((found for found in execution.suspensions if found.addressee == "caller"), None)


async def _learn_open_question(warden: planwarden.Warden, thread_id: str, closed_id: str, content: JsonValue) -> str:
    """Answers the closed question, and returns the open one that it is told of; the closed one if it is told none."""
    try:
        question = find_question(await warden.submit_answer(thread_id, closed_id, content))
    except AlreadyAnswered as error:
        named = re.search(r"open question (\S+)", error.message)
        return closed_id if named is None else named.group(1)
    return closed_id if question is None else question.suspension_id


def _build_request(question: planwarden.Suspension, number: int, plan: Body, refusal: str | None) -> ModelRequest:
    tools: dict[str, Body] = {tool.name: tool.input_schema for tool in question.tools}
    if question.kind == "plan":
        tools = {PLAN_TOOL: {}}
    parts = (question.instructions, question.goal, question.results, question.prompt)
    text = "\n\n".join(part for part in parts if part)
    forced = find_requested_tools(question.prompt or "", tools)
    if refusal is not None:
        text += f"\n\nYour last answer could not be used: {refusal}"
    return ModelRequest(number=number, system="", text=text, tools=tools, forced=forced, plan=plan)


def _build_content(reply: ModelReply) -> JsonValue:
    planned = next((arguments for name, arguments in reply.calls if name == PLAN_TOOL), None)
    if planned is not None:
        return planned
    if reply.calls:
        return {"toolCalls": [{"toolName": name, "arguments": arguments} for name, arguments in reply.calls]}
    return {"content": reply.text or ""}

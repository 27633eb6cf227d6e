"""The manners without a wire format: an assistant that answers the suspensions addressed to the caller."""

import planwarden
from planwarden.agent.common.errors import UsageError
from tests.support.doubles.manners import Manner
from tests.support.doubles.messages import Body, ModelReply, ModelRequest, find_requested_tools
from tests.support.doubles.server import PLAN

MAX_ANSWERS = 40


async def answer_all(
    warden: planwarden.Warden, execution: planwarden.Execution, manner: Manner, plan: Body | None = None
) -> planwarden.Execution:
    """Answers until no question is addressed to the caller, or `MAX_ANSWERS` were given.

    After a refused answer the caller tries once more, with the reason in the prompt; then it gives up.
    """
    refusal: str | None = None
    for number in range(1, MAX_ANSWERS + 1):
        execution = await warden.get_execution(execution.thread_id)
        question = next((found for found in execution.suspensions if found.addressee == "caller"), None)
        if question is None:
            break
        request = _build_request(question, number, plan or PLAN, refusal)
        content = _build_content(manner.answer(request), request)
        try:
            await warden.submit_answer(execution.thread_id, question.suspension_id, content)
            refusal = None
        except UsageError as error:
            if refusal is not None:
                break
            refusal = error.message
    return await warden.get_execution(execution.thread_id)


def _build_request(question: planwarden.Suspension, number: int, plan: Body, refusal: str | None) -> ModelRequest:
    tools: dict[str, Body] = {tool.name: tool.input_schema for tool in question.tools}
    parts = (question.instructions, question.goal, question.results, question.prompt)
    text = "\n\n".join(part for part in parts if part)
    forced = find_requested_tools(question.prompt or "", tools)
    if refusal is not None:
        text += f"\n\nYour last answer could not be used: {refusal}"
    return ModelRequest(number=number, system="", text=text, tools=tools, forced=forced, plan=plan)


def _build_content(reply: ModelReply, request: ModelRequest) -> Body:
    """Returns the reply in the documented form of an answer."""
    if request.wants_plan and not reply.calls:
        return request.plan
    if reply.calls:
        return {"toolCalls": [{"toolName": name, "arguments": arguments} for name, arguments in reply.calls]}
    return {"content": reply.text or ""}

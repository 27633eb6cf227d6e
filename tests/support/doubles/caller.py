"""The same manners without a wire: an assistant that answers the suspensions addressed to it."""

import planwarden
from planwarden.agent.common.errors import UsageError
from tests.support.doubles.asked import Asked, Body, Said, called_for
from tests.support.doubles.manners import Manner
from tests.support.doubles.server import PLAN

MAX_ANSWERS = 40


async def answer_all(
    warden: planwarden.Warden, execution: planwarden.Execution, manner: Manner, plan: Body | None = None
) -> planwarden.Execution:
    """Answer until nothing is asked of the caller any more, or it becomes clear that there is no end.

    A refused answer is given again, once, with the reason in sight; then the caller gives up, as assistants do.
    """
    refusal: str | None = None
    for number in range(1, MAX_ANSWERS + 1):
        execution = await warden.get_execution(execution.thread_id)
        question = next((found for found in execution.suspensions if found.addressee == "caller"), None)
        if question is None:
            break
        asked = _asked(question, number, plan or PLAN, refusal)
        content = _content(manner.answer(asked), asked)
        try:
            await warden.submit_answer(execution.thread_id, question.suspension_id, content)
            refusal = None
        except UsageError as error:
            if refusal is not None:
                break
            refusal = error.message
    return await warden.get_execution(execution.thread_id)


def _asked(question: planwarden.Suspension, number: int, plan: Body, refusal: str | None) -> Asked:
    tools: dict[str, Body] = {tool.name: tool.input_schema for tool in question.tools}
    text = question.prompt or ""
    forced = called_for(text, tools)
    if refusal is not None:
        text += f"\n\nYour last answer could not be used: {refusal}"
    return Asked(number=number, system="", text=text, tools=tools, forced=forced, plan=plan)


def _content(said: Said, asked: Asked) -> Body:
    """What the documented form of the answer has room for."""
    if asked.wants_plan and not said.calls:
        return asked.plan
    if said.calls:
        return {"toolCalls": [{"toolName": name, "arguments": arguments} for name, arguments in said.calls]}
    return {"content": said.text or ""}

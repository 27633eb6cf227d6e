"""Recording a decision that a person made on a page.

Usually this process continues the execution. If it lacks a tool of the execution, because another program registered
that tool, it only records the decision, and the process that has the tools continues: a call must not fail because of
the page on which the person decided.
"""

from collections.abc import Awaitable, Callable, Iterator

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.execution.state import STEP_TERMINAL, ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.service import Service
from planwarden.server.inbox.questions import QuestionRecord
from planwarden.server.inbox.request import InboxRequest
from planwarden.server.views.question_text import hash_question

CHANNEL = "inbox"
WAIT_S = 1.0
"""How long a decision waits for the execution, so that the next page can show the result."""


async def record_decision(
    request: InboxRequest,
    record: QuestionRecord,
    decision: Decision,
    digest: str,
    *,
    wait_s: float = 0.0,
    assurance: ev.Assurance = "human",
    then: Callable[[], Awaitable[None]] | None = None,
) -> ExecutionState:
    """Record a decision about the revision with `digest`. Returns the execution; `then` and what it raises are those
    of `Service.answer`.
    """
    service = request.service
    rendered = hash_question(record.card) if digest == record.question.digest else ""
    authority = Authority(
        assurance=assurance, channel=CHANNEL, principal=request.session.principal, digest=digest, rendered=rendered
    )
    place = (record.row.thread_id, record.row.suspension_id)
    if not list_unavailable_tools(service, record.execution):
        execution, _ = await service.answer(*place, decision, authority, principal=None, then=then)
        return await service.wait(execution, wait_s) if wait_s else execution
    recorder = Engine(
        service.store, service.tools, CallerModel(), service.policy, ids=service.ids, adopts=False, follows=False
    )
    async with recorder:
        recording = Service(recorder, ev.Options(), max_steps=0)
        execution, _ = await recording.answer(*place, decision, authority, principal=None, then=then)
        return execution


def list_unavailable_tools(service: Service, execution: ExecutionState) -> tuple[str, ...]:
    """Return the names of tools that unfinished steps use and that this process does not have."""
    tools = service.tools
    names = dict.fromkeys(_list_pending_tools(execution))
    return tuple(name for name in names if (tool := tools.get(name)) is None or tool.unavailable)


def _list_pending_tools(execution: ExecutionState) -> Iterator[str]:
    for state in execution.steps.values():
        if state.status in STEP_TERMINAL:
            continue
        yield from state.step.required_tools
        yield from (planned.tool_name for planned in state.step.tool_calls)
        yield from (call.tool_name for call in state.calls)

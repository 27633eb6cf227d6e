"""Recording a decision that a person made on a page.

Usually this process continues the execution. If it lacks a tool of the execution, because another program registered
that tool, it only records the decision, and the process that has the tools continues: a call must not fail because of
the page on which the person decided.
"""

from collections.abc import Awaitable, Callable, Iterator

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.core import events as ev
from planwarden.agent.core.state import STEP_TERMINAL, ExecutionState
from planwarden.agent.models.caller import CallerModel
from planwarden.agent.runtime.engine import Engine
from planwarden.server.api.service import Service
from planwarden.server.inbox.questions import QuestionRecord
from planwarden.server.inbox.request import InboxRequest
from planwarden.server.views.execution import Execution
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
    wait_s: float,
    assurance: ev.Assurance = "human",
    then: Callable[[], Awaitable[None]] | None = None,
) -> Execution:
    """Record a decision about the revision with `digest`. Returns the execution; `then` and what it raises are those
    of `Service.answer`.
    """
    rendered = hash_question(record.card) if digest == record.question.digest else ""
    authority = Authority(
        assurance=assurance, channel=CHANNEL, principal=request.session.principal, digest=digest, rendered=rendered
    )
    if not find_missing_tools(request.service, record.execution):
        return await _answer(request.service, record, decision, authority, wait_s, then)
    engine = request.service.engine
    recorder = Engine(
        engine.store,
        engine.tools,
        CallerModel(),
        engine.grants.policy,
        ids=engine.ids,
        adopts=False,
        follows=False,
    )
    async with recorder:
        service = Service(recorder, ev.Options(), max_steps=0)
        return await _answer(service, record, decision, authority, 0, then)


def find_missing_tools(service: Service, execution: ExecutionState) -> tuple[str, ...]:
    """Return the names of tools that unfinished steps use and that this process does not have."""
    tools = service.engine.tools
    names = dict.fromkeys(_list_pending_tools(execution))
    return tuple(name for name in names if (tool := tools.get(name)) is None or tool.unavailable)


async def _answer(
    service: Service,
    record: QuestionRecord,
    decision: Decision,
    authority: Authority,
    wait_s: float,
    then: Callable[[], Awaitable[None]] | None,
) -> Execution:
    return await service.answer(
        record.row.thread_id,
        record.row.suspension_id,
        decision,
        authority,
        wait_seconds=wait_s,
        principal=None,
        then=then,
    )


def _list_pending_tools(execution: ExecutionState) -> Iterator[str]:
    for state in execution.steps.values():
        if state.status in STEP_TERMINAL:
            continue
        yield from state.step.required_tools
        yield from (planned.tool_name for planned in state.step.tool_calls)
        yield from (call.tool_name for call in state.calls)

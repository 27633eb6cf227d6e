"""What a person can do with an execution from its page: stop it, go on with it, rehearse its plan, keep its plan.

Each is what the command line does, for the owner of the execution. A form that is sent twice starts once: it carries
the key that its page was made with.
"""

from collections.abc import Mapping

from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.execution.events import Starter
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import plan_to_json
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.inbox.decision import CHANNEL
from planwarden.server.inbox.pages.execution import find_execution, find_later
from planwarden.server.inbox.request import InboxRequest, PageRoutes

HOST = "planwarden inbox"


ROUTES = PageRoutes()


@ROUTES.form("/executions/{execution_id}/cancel")
async def cancel_execution(request: InboxRequest) -> Response:
    execution = await find_execution(request)
    await request.service.cancel(execution, f"cancelled in the inbox by {request.session.principal}")
    return request.redirect(f"/executions/{execution.execution_id}")


@ROUTES.form("/executions/{execution_id}/retry")
async def retry_execution(request: InboxRequest) -> Response:
    """Go on with what is left."""
    return await go_on(request, None)


@ROUTES.form("/executions/{execution_id}/fork")
async def fork_execution(request: InboxRequest) -> Response:
    """Run again from the chosen step on."""
    return await go_on(request, request.form_value("from"))


async def go_on(
    request: InboxRequest, from_step: str | None, inputs: Mapping[str, JsonValue] | None = None
) -> Response:
    """Start what goes on from the execution of the address, and lead to it. Raises as `Service.retry`."""
    execution = await find_execution(request)
    store, key = request.service.store, request.read_key("go on")
    later = await find_later(request, execution)
    # The same form sent again is answered with what it started.
    if later is not None and await store.find_start(execution.principal, key) is None:
        raise InvalidArguments("a later run of this thread exists; open it to go on from there")
    start = StartOptions(requester=_build_requester(request, execution), key=key, inputs=inputs)
    retried = await request.service.retry(execution.thread_id, start, from_step=from_step)
    return request.redirect(f"/executions/{retried.execution_id}")


@ROUTES.form("/executions/{execution_id}/rehearse")
async def rehearse_plan(request: InboxRequest) -> Response:
    """Run the same plan on its own, without an effect."""
    execution = await find_execution(request)
    if execution.plan is None:
        raise InvalidArguments("this execution has no plan yet")
    start = StartOptions(
        requester=_build_requester(request, execution),
        key=request.read_key("rehearse"),
        goal=execution.goal,
        inputs=dict(execution.inputs) or None,
        options={"rehearse": True},
    )
    rehearsal = await request.service.execute_plan(plan_to_json(execution.plan), start)
    return request.redirect(f"/executions/{rehearsal.execution_id}")


def _build_requester(request: InboxRequest, execution: ExecutionState) -> Requester:
    """Return who asks for an action: the owner has the execution, and the person at the button started the action."""
    starter = Starter(principal=request.session.principal, channel=CHANNEL)
    return Requester(execution.principal, host=HOST, starter=starter)

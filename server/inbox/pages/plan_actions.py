"""What a person can do with an execution from its page: stop it, go on with it, rehearse its plan, keep its plan.

Each is what the command line does, for the owner of the execution. A form that is sent twice starts once: it carries
the key that its page was made with.
"""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue
from starlette.responses import Response
from starlette.routing import BaseRoute

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.core.events import Starter
from planwarden.agent.core.plan import plan_to_json
from planwarden.agent.core.requester import Requester
from planwarden.agent.core.state import ExecutionState
from planwarden.server.inbox.decision import CHANNEL
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.pages.execution import find_execution, find_later
from planwarden.server.inbox.request import BadForm, InboxRequest, form_route
from planwarden.server.inbox.site import InboxSite

HOST = "planwarden inbox"
MAX_KEY_CHARS = 64


def build_plan_action_routes(site: InboxSite) -> Sequence[BaseRoute]:
    where = f"{INBOX_PATH}/executions/{{execution_id}}"
    return (
        form_route(site, f"{where}/cancel", cancel_execution),
        form_route(site, f"{where}/retry", retry_execution),
        form_route(site, f"{where}/fork", fork_execution),
        form_route(site, f"{where}/rehearse", rehearse_plan),
    )


async def cancel_execution(request: InboxRequest) -> Response:
    execution = await find_execution(request)
    await request.service.engine.cancel(execution, f"cancelled in the inbox by {request.session.principal}")
    return request.redirect(f"/executions/{execution.execution_id}")


async def retry_execution(request: InboxRequest) -> Response:
    """Go on with what is left."""
    return await go_on(request, None)


async def fork_execution(request: InboxRequest) -> Response:
    """Run again from the chosen step on."""
    return await go_on(request, request.form_value("from"))


async def go_on(
    request: InboxRequest, from_step: str | None, inputs: Mapping[str, JsonValue] | None = None
) -> Response:
    """Start what goes on from the execution of the address, and lead to it. Raises as `Service.retry`."""
    execution = await find_execution(request)
    store, key = request.service.engine.store, _read_key(request)
    later = await find_later(request, execution)
    # The same form sent again is answered with what it started.
    if later is not None and await store.find_start(execution.principal, key) is None:
        raise InvalidArguments("a later run of this thread exists; open it to go on from there")
    view = await request.service.retry(
        execution.thread_id,
        from_step=from_step,
        inputs=inputs,
        key=key,
        wait_seconds=0,
        requester=_build_requester(request, execution),
    )
    return request.redirect(f"/executions/{view.execution_id}")


async def rehearse_plan(request: InboxRequest) -> Response:
    """Run the same plan on its own, without an effect."""
    execution = await find_execution(request)
    if execution.plan is None:
        raise InvalidArguments("this execution has no plan yet")
    view = await request.service.execute_plan(
        plan_to_json(execution.plan),
        inputs=dict(execution.inputs) or None,
        goal=execution.goal,
        key=_read_key(request),
        options={"rehearse": True},
        wait_seconds=0,
        requester=_build_requester(request, execution),
    )
    return request.redirect(f"/executions/{view.execution_id}")


def _build_requester(request: InboxRequest, execution: ExecutionState) -> Requester:
    """Who asks for what is done with the execution: its owner has it, and whoever pressed the button started it."""
    starter = Starter(principal=request.session.principal, channel=CHANNEL)
    return Requester(execution.principal, host=HOST, starter=starter)


def _read_key(request: InboxRequest) -> str:
    """The key that the page was made with. Raises `BadForm`."""
    key = request.form_value("key")
    if not (key.isascii() and 8 <= len(key) <= MAX_KEY_CHARS):
        raise BadForm
    return f"inbox {key}"

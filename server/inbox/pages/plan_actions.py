"""What a person can do with an execution from its page: stop it, continue it (also with other inputs), or rehearse it.

Each action does what the command line does, for the owner of the execution. Each page puts a new key into its form,
so a form that is sent twice starts only one run.

A new run does not get an optional input that the form leaves out. A change of a value that a completed step took needs
a run from that step, or from a step that it depends on. Otherwise nothing starts, and the page says why.
"""

from collections.abc import Mapping

from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.common.errors import InvalidArguments, UsageError
from planwarden.agent.core.control.retry_reuse import keep_version
from planwarden.agent.core.execution.events import Starter
from planwarden.agent.core.execution.requester import Requester
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import plan_to_json
from planwarden.agent.runtime.new_execution import StartOptions
from planwarden.server.inbox.forms import FilledForm, build_fault_remark, build_input_fields, fill_inputs_form
from planwarden.server.inbox.pages.execution import build_plan_view, build_values, find_execution, find_later
from planwarden.server.inbox.questions import CHANNEL
from planwarden.server.inbox.request import InboxRequest, PageRoutes, Remark, describe_refusal
from planwarden.server.views.plan_graph import PlanGraph

HOST = "planwarden inbox"
WHAT_IS_LEFT = ""
"""The choice that means a retry; every other choice is the step from which a fork starts."""
_NO_INPUTS = "its plan takes no inputs"

ROUTES = PageRoutes()


@ROUTES.form("/executions/{execution_id}/cancel")
async def cancel_execution(request: InboxRequest) -> Response:
    execution = await find_execution(request)
    await request.service.cancel(execution, f"cancelled in the inbox by {request.session.principal}")
    return request.redirect(f"/executions/{execution.execution_id}")


@ROUTES.form("/executions/{execution_id}/retry", "/executions/{execution_id}/fork")
async def continue_execution(request: InboxRequest) -> Response:
    """Start a run of the steps that are left or, for a fork, of the chosen step and every step that depends on it.

    If that is refused and a later run exists, return the page of this run as it is now.
    """
    try:
        return await _go_on(request, request.form_value("from") if request.http.url.path.endswith("/fork") else None)
    except UsageError as error:
        execution = await find_execution(request)
        later = await find_later(request, execution)
        if later is None:
            raise
        values = await build_values(request, execution)
        remark = describe_refusal(error, "Nothing was started.")
        return request.render_page("execution.html", remark=remark, later=later, seen="", **values)


async def _go_on(
    request: InboxRequest, from_step: str | None, inputs: Mapping[str, JsonValue] | None = None
) -> Response:
    """Continue the execution in the address, and redirect to the new run. Raises what `Service.retry` raises."""
    execution = await find_execution(request)
    store, key = request.service.store, request.read_key("go on")
    later = await find_later(request, execution)
    # If the same form is sent again, the answer is the run that it started.
    if later is not None and await store.find_start(execution.principal, key) is None:
        raise InvalidArguments("a later run of this thread exists; open it to go on from there")
    start = StartOptions(requester=_build_requester(request, execution), key=key, inputs=inputs, has_all_inputs=True)
    retried = await request.service.retry(execution.thread_id, start, from_step=from_step)
    return request.redirect(f"/executions/{retried.execution_id}")


@ROUTES.form("/executions/{execution_id}/rehearse")
async def rehearse_plan(request: InboxRequest) -> Response:
    """Rehearse the plan: run it in a new thread, without effects."""
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
    version = keep_version(execution, execution.plan)
    rehearsal = await request.service.execute_plan(plan_to_json(execution.plan), start, saved_plan=version)
    return request.redirect(f"/executions/{rehearsal.execution_id}")


def _build_requester(request: InboxRequest, execution: ExecutionState) -> Requester:
    """Return the requester of an action: the execution's owner, with the person who pressed the button as starter."""
    starter = Starter(principal=request.session.principal, channel=CHANNEL)
    return Requester(execution.principal, host=HOST, starter=starter)


@ROUTES.page("/executions/{execution_id}/inputs")
async def show_inputs(request: InboxRequest) -> Response:
    return await _render_inputs(request, await find_execution(request))


@ROUTES.form("/executions/{execution_id}/inputs/run")
async def run_with_inputs(request: InboxRequest) -> Response:
    """Start the retry or the fork, or show whether the inputs fit. The same form, sent twice, starts one run."""
    verdict = request.read_verdict("check", "run")
    execution = await find_execution(request)
    schema = None if execution.plan is None else execution.plan.inputs
    form_inputs = fill_inputs_form(schema, request.form_values(), execution.inputs)
    if not form_inputs.is_usable:
        return await _render_inputs(request, execution, build_fault_remark(form_inputs), filled=form_inputs)
    if verdict == "check":
        remark = Remark("These inputs fit the plan; nothing was started.", tone="plain")
        return await _render_inputs(request, execution, remark, filled=form_inputs)
    try:
        return await _go_on(request, request.form_value("from") or None, form_inputs.values)
    except UsageError as error:
        remark = describe_refusal(error, "Nothing was started.")
        return await _render_inputs(request, execution, remark, filled=form_inputs)


async def _render_inputs(
    request: InboxRequest, execution: ExecutionState, remark: Remark | None = None, *, filled: FilledForm | None = None
) -> Response:
    later = await find_later(request, execution)
    view = build_plan_view(execution, PlanGraph(rows=(), links=()), is_newest=later is None, people=())
    if not view["can_change"] and (later is None or filled is None):
        why = "a later run goes on" if later else "it is not over" if not execution.is_finished else _NO_INPUTS
        raise InvalidArguments(f"this run cannot be run again with other inputs: {why}")
    choices = [(step, f"again from step {step} on") for step in view["fork_steps"]] if view["can_fork"] else []
    if view["can_retry"]:
        choices.insert(0, (WHAT_IS_LEFT, "what is left"))
    return request.render_page(
        "changed_inputs.html",
        remark=remark,
        execution=execution,
        view=view,
        later=later,
        choices=choices,
        fields=build_input_fields(None if execution.plan is None else execution.plan.inputs, execution.inputs),
        filled=filled,
        key=request.form_value("key") or request.new_key(),
    )

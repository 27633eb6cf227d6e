"""The page on which a person runs a finished execution again with other inputs: a retry or a fork.

What the form does not change stays as it was. A step that took a changed value and is done already runs again only if
the person chose it, or one before it; otherwise the page says so, and nothing starts.
"""

from starlette.responses import Response

from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import InvalidArguments, UsageError
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.inbox.forms import FilledForm
from planwarden.server.inbox.pages.execution import find_execution, find_later
from planwarden.server.inbox.pages.plan_actions import go_on
from planwarden.server.inbox.plan_view import build_plan_view
from planwarden.server.inbox.request import BadForm, InboxRequest, PageRoutes, Remark, describe_refusal, http_status
from planwarden.server.inbox.saved.input_form import build_fault_remark, build_input_fields, read_given_inputs
from planwarden.server.views.graph.plan_graph import PlanGraph

WHAT_IS_LEFT = ""
"""The choice of a retry; every other one is the step of a fork."""
_NO_INPUTS = "its plan takes no inputs"


ROUTES = PageRoutes()


@ROUTES.page("/executions/{execution_id}/inputs")
async def show_inputs(request: InboxRequest) -> Response:
    execution = await find_execution(request)
    return await _render(request, execution)


@ROUTES.form("/executions/{execution_id}/inputs/run")
async def run_with_inputs(request: InboxRequest) -> Response:
    """Start the retry or the fork, or show what does not fit; the same form sent twice starts one."""
    verdict = request.form_value("decision")
    if verdict not in ("check", "run"):
        raise BadForm
    execution = await find_execution(request)
    schema = None if execution.plan is None else execution.plan.inputs
    fields = build_input_fields(schema, execution.inputs)
    form_inputs = read_given_inputs(schema, fields, request.form_values())
    if not form_inputs.is_usable:
        return await _render(request, execution, build_fault_remark(form_inputs), filled=form_inputs.filled, status=422)
    if verdict == "check":
        remark = Remark(text="These inputs fit the plan; nothing was started.", tone="plain")
        return await _render(request, execution, remark, filled=form_inputs.filled)
    changed = {
        name: value
        for name, value in form_inputs.values.items()
        if name not in execution.inputs or not is_same_json(execution.inputs[name], value)
    }
    try:
        return await go_on(request, request.form_value("from") or None, changed)
    except UsageError as error:
        refusal = describe_refusal(error, "Nothing was started.")
        return await _render(request, execution, refusal, filled=form_inputs.filled, status=http_status(error))


async def _render(
    request: InboxRequest,
    execution: ExecutionState,
    remark: Remark | None = None,
    *,
    filled: FilledForm | None = None,
    status: int = 200,
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
        status=status,
        remark=remark,
        execution=execution,
        view=view,
        later=later,
        choices=choices,
        chosen=request.form_value("from"),
        fields=build_input_fields(None if execution.plan is None else execution.plan.inputs, execution.inputs),
        filled=filled,
        key=request.form_value("key") or request.new_key(),
    )

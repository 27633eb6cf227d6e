"""The page on which a person keeps the plan of a finished run as a saved plan, as `planwarden plans keep` does.

It is the only page that writes a plan, and it writes exactly the file that it showed. If the choices in the form give
another file, the page shows that file and writes nothing. A model cannot use the page: it has no session.
"""

import re

import anyio.to_thread
import msgspec
from pydantic import JsonValue
from starlette.responses import Response

from planwarden.agent.common.errors import PlanwardenError, UsageError
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.inbox.pages.execution import find_execution
from planwarden.server.inbox.request import InboxRequest, PageRoutes, Remark, describe_refusal, hash_draft
from planwarden.server.plans.library import PlanCatalogue
from planwarden.server.plans.plan_file import MAX_NAME_CHARS, MAX_TITLE_CHARS
from planwarden.server.plans.plan_writer import (
    ProposedInput,
    build_document,
    check_keepable,
    check_new_name,
    describe_open_steps,
    format_plan,
    propose_inputs,
    suggest_title,
    write_plan,
)
from planwarden.server.settings.configuration import PLAN_FOLDER
from planwarden.server.views.escaping import ValueView, capitalize, escape_text

OTHER_FILE = (
    "You changed something since this page showed the file. It now shows the changed file; nothing was written."
)


class _Draft(msgspec.Struct, frozen=True, kw_only=True):
    """The file that the form describes."""

    name: str
    title: str
    proposed: tuple[ProposedInput, ...]
    inputs: tuple[ProposedInput, ...]
    document: dict[str, JsonValue]
    comment: str
    text: str

    def is_kept(self, catalogue: PlanCatalogue) -> bool:
        """Return whether a saved plan already has this name and content, perhaps because the form was sent twice."""
        saved_plan = catalogue.get(self.name)
        expected = {key: value for key, value in self.document.items() if key != "title"}
        return saved_plan is not None and saved_plan.document == expected and (saved_plan.title or "") == self.title


ROUTES = PageRoutes()


@ROUTES.page("/executions/{execution_id}/keep")
async def show_keep_form(request: InboxRequest) -> Response:
    execution = await _find_keepable(request)
    title = suggest_title(execution.goal)
    name = re.sub(r"[^a-z0-9]+", "-", title.lower())[:MAX_NAME_CHARS].strip("-")
    return _render(request, execution, _build_draft(request, execution, name, title, ""))


@ROUTES.form("/executions/{execution_id}/keep/write")
async def keep_plan(request: InboxRequest) -> Response:
    """Write the file that the page showed, or show the file that the form describes now."""
    verdict = request.read_verdict("preview", "keep")
    execution = await _find_keepable(request)
    title = " ".join(request.form_value("title").split())
    draft = _build_draft(request, execution, request.form_value("name").strip(), title, "yes")
    if len(draft.title) > MAX_TITLE_CHARS:
        text = f"The title is longer than {MAX_TITLE_CHARS} characters; nothing was written."
        return _render(request, execution, draft, Remark(text, 422, "bad"))
    catalogue = await request.service.look_at_plans()
    if verdict == "keep" and draft.is_kept(catalogue):
        return request.redirect(f"/saved/{draft.name}")
    try:
        check_new_name(catalogue, draft.name)
    except UsageError as error:
        return _render(request, execution, draft, name_fault=capitalize(escape_text(error.message)))
    other_file = Remark(OTHER_FILE, 409) if verdict == "keep" else None
    page = request.confirm(draft.text, lambda _: _render(request, execution, draft, other_file))
    if page is not None:
        return page
    folder = request.site.settings.home / PLAN_FOLDER
    try:
        await anyio.to_thread.run_sync(write_plan, folder, draft.name, draft.document, draft.comment)
    except PlanwardenError as error:
        # If the form came twice at the same time, the other request has already written the same file.
        if draft.is_kept(await request.service.look_at_plans()):
            return request.redirect(f"/saved/{draft.name}")
        return _render(request, execution, draft, describe_refusal(error, "Nothing was written."))
    return request.redirect(f"/saved/{draft.name}")


def _build_draft(request: InboxRequest, execution: ExecutionState, name: str, title: str, mark: str) -> _Draft:
    """Return the file, with an input for each checkbox whose value is `mark`: without a form, all have the value ""."""
    plan = check_keepable(execution)
    proposed = propose_inputs(plan, execution.goal)
    inputs = [entry for number, entry in enumerate(proposed) if request.form_value(f"input.{number}") == mark]
    document = build_document(plan, title, execution.inputs, inputs)
    author = escape_text(request.session.principal)
    comment = f"Kept in the inbox by {author} from thread {execution.thread_id}.{describe_open_steps(plan)}"
    return _Draft(
        name=name,
        title=title,
        proposed=proposed,
        inputs=tuple(inputs),
        document=document,
        comment=comment,
        text=format_plan(document, comment),
    )


async def _find_keepable(request: InboxRequest) -> ExecutionState:
    """Return the finished run that the address names. Raises `UsageError` if its plan cannot be kept, or this process
    cannot write to the person's home."""
    execution = await find_execution(request)
    check_keepable(execution)
    if request.site.is_shared:
        raise UsageError(
            "many processes share this database, and this one cannot write to your home; run `planwarden plans keep "
            f"{execution.thread_id} NAME` where your saved plans are"
        )
    return execution


def _render(
    request: InboxRequest, execution: ExecutionState, draft: _Draft, remark: Remark | None = None, name_fault: str = ""
) -> Response:
    return request.render_page(
        "keep.html",
        status=422 if name_fault else None,
        remark=remark,
        execution=execution,
        name=draft.name,
        name_fault=name_fault,
        max_name=MAX_NAME_CHARS,
        title=draft.title,
        max_title=MAX_TITLE_CHARS,
        inputs=[(f"input.{number}", each, each in draft.inputs) for number, each in enumerate(draft.proposed)],
        file=ValueView(draft.text.rstrip("\n")),
        folder=escape_text(str(request.site.settings.home / PLAN_FOLDER)),
        seen=hash_draft(draft.text),
    )

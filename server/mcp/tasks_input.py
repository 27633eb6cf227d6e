"""What a task asks of its client, and what the client's answers decide.

A question that a form can decide is an input request under the key `SUSPENSION.REVISION`; every other question shows in
the task's status message only, and is answered where it always is: the inbox, the terminal, `submit_answer`. An accepted
form goes through the same gate as on every other channel and is worth `client`, no more. A form that came back without a
decision decides nothing, because unattended hosts close forms by themselves; as a key may not be used again after its
answer, the question is not put through the task any more. That is kept in the audit, so that restarts do not forget it.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Literal

from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, ClientCapabilities, ElicitRequest, ElicitRequestFormParams, ElicitResult
from pydantic import ValidationError

from planwarden.agent.answers import Authority, Decision
from planwarden.agent.audit import Entry
from planwarden.agent.errors import (
    AlreadyDecided,
    Expired,
    InvalidArguments,
    LimitExceeded,
    StaleDefinition,
    StaleRevision,
    UnknownSuspension,
)
from planwarden.agent.state import Execution
from planwarden.server.facts import shown_digest
from planwarden.server.mcp.forms import Form, decision_from, form_for
from planwarden.server.service import Service
from planwarden.server.views import Suspension

CHANNEL = "tasks"
CACHED, PAGE = 1_024, 100
MAX_KEY_SHOWN = 80

Content = dict[str, Any]


class TaskInput:
    """Questions of tasks as forms. `form` and `decision` make a form and read it; a suite of fixtures has its own."""

    def __init__(
        self,
        form: Callable[[Suspension], Form | None] = form_for,
        decision: Callable[[Suspension, Content | None], Decision | None] = decision_from,
    ) -> None:
        self._form = form
        self._decision = decision
        self._closed: OrderedDict[str, set[str]] = OrderedDict()
        """Keys of forms that came back without a decision, by execution."""

    async def outstanding(
        self, service: Service, execution: Execution, capabilities: ClientCapabilities | None
    ) -> dict[str, tuple[Suspension, Form]]:
        """What this client can be asked now, by key. Raises `StoreError`."""
        if execution.is_finished or not _shows_forms(capabilities):
            return {}
        found: dict[str, tuple[Suspension, Form]] = {}
        for suspension in service.view(execution).suspensions:
            form = self._form(suspension) if suspension.addressee == "human" else None
            if form is not None:
                found[f"{suspension.suspension_id}.{suspension.revision}"] = suspension, form
        closed = await self._closed_of(service, execution.execution_id) if found else set[str]()
        return {key: asked for key, asked in found.items() if key not in closed}

    async def answer(
        self,
        service: Service,
        principal: str,
        asked: Mapping[str, tuple[Suspension, Form]],
        responses: Mapping[str, Any],
    ) -> None:
        """Apply the responses to outstanding keys and ignore all others; the same responses again change nothing.

        Raises:
            MCPError: a response does not fit its question, which stays open; the ones before it count.
            StoreError: nothing more was recorded.
        """
        read = {key: _response(key, responses[key]) for key in asked if key in responses}
        for key, response in read.items():
            suspension, _ = asked[key]
            try:
                decision = self._decision(suspension, response.content) if response.action == "accept" else None
                if decision is None:
                    await self._close(service, suspension, key, response.action, principal)
                else:
                    await _decide(service, suspension, decision, principal)
            except (InvalidArguments, LimitExceeded) as error:
                raise MCPError(code=INVALID_PARAMS, message=f"inputResponses {key!r}: {error.message}") from None

    async def _close(
        self,
        service: Service,
        suspension: Suspension,
        key: str,
        action: Literal["accept", "decline", "cancel"],
        principal: str,
    ) -> None:
        closed = await self._closed_of(service, suspension.execution_id)
        if key in closed:
            return
        entry = Entry(
            kind="form_closed",
            facts={"key": key, "action": action, "channel": CHANNEL, "principal": principal},
            execution_id=suspension.execution_id,
            suspension_id=suspension.suspension_id,
        )
        await service.engine.store.audit((entry,))
        closed.add(key)

    async def _closed_of(self, service: Service, execution_id: str) -> set[str]:
        """Read from the audit once; what other processes close later is noticed after a restart."""
        found = self._closed.get(execution_id)
        if found is None:
            found = set[str]()
            after = 0
            while rows := await service.engine.store.audit_rows(after=after, execution_id=execution_id, limit=PAGE):
                found.update(str(row.entry.facts.get("key")) for row in rows if row.entry.kind == "form_closed")
                after = rows[-1].sequence
            found = self._closed.setdefault(execution_id, found)
        self._closed.move_to_end(execution_id)
        if len(self._closed) > CACHED:
            self._closed.popitem(last=False)
        return found


def input_request(form: Form) -> Content:
    """The form as the request that a client would get by itself."""
    params = ElicitRequestFormParams(message=form.message, requested_schema=form.schema)
    return ElicitRequest(params=params).model_dump(by_alias=True, mode="json", exclude_none=True)


async def _decide(service: Service, suspension: Suspension, decision: Decision, principal: str) -> None:
    """What somebody else decided, what expired or was revised meanwhile is superseded, which is no error here."""
    authority = Authority(
        assurance="client",
        channel=CHANNEL,
        principal=principal,
        digest=suspension.digest,
        rendered=shown_digest(suspension),
    )
    try:
        await service.answer(
            suspension.thread_id,
            suspension.suspension_id,
            decision,
            authority,
            wait_seconds=0,
            principal=principal,
        )
    except (AlreadyDecided, Expired, StaleDefinition, StaleRevision, UnknownSuspension):
        return


def _response(key: str, given: object) -> ElicitResult:
    try:
        return ElicitResult.model_validate(given, by_name=False)
    except ValidationError:
        raise MCPError(
            code=INVALID_PARAMS,
            message=f"inputResponses {key[:MAX_KEY_SHOWN]!r} is not the result of an elicitation: it needs an action "
            "(accept, decline or cancel) and, when accepted, the form's content",
        ) from None


def _shows_forms(capabilities: ClientCapabilities | None) -> bool:
    elicitation = capabilities.elicitation if capabilities is not None else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)

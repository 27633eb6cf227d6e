"""Signing on the page of a question: whether this person may, the challenge, and the signature that comes back.

The page's form is sent twice to the same address: first by the script, which is given a challenge for the answer that
stands in the form, then with the signature of it. Both times the same answer is made of the same fields.
"""

from starlette.responses import JSONResponse, Response

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import UsageError
from planwarden.server.inbox.keys.relying_party import KeyObstacle, find_obstacle, find_relying_party
from planwarden.server.inbox.links import INBOX_PATH
from planwarden.server.inbox.questions import QuestionRecord
from planwarden.server.inbox.request import InboxRequest
from planwarden.server.signatures.keyring import Keyring, SignedStatement
from planwarden.server.signatures.signature import SignatureRefused
from planwarden.storage.ports.keys import HasKeys


def can_sign(request: InboxRequest, record: QuestionRecord) -> bool:
    """Whether this person's approval counts with a signature and does not without."""
    gate, question = request.service.engine.grants.gate, record.suspension.question
    name, owner = request.session.principal, record.row.principal
    if not isinstance(request.service.engine.store, HasKeys):
        return False
    has_voted = any(gate.person(vote.principal) == gate.person(name) for vote in record.suspension.endorsements)
    worth = [gate.worth(assurance, name, owner, question.needs) for assurance in ("human", "signed")]
    return record.view.is_open and not has_voted and worth[0] is None and worth[1] is not None


async def find_signing_obstacle(request: InboxRequest, record: QuestionRecord) -> KeyObstacle | None:
    """What keeps a person who may sign from it."""
    found = find_obstacle(request, f"{INBOX_PATH}/suspensions/{record.row.suspension_id}")
    place = find_relying_party(request)
    if found is not None or place is None:
        return found
    usable = await Keyring(request.service.engine.store).list_usable_keys(request.session.principal)
    if any(key.rp_id == place.rp_id for key in usable):
        return None
    return KeyObstacle(
        text="This call is approved with a key of yours, and you have none here.",
        link=f"{INBOX_PATH}/keys",
        action="Add one",
    )


async def take_signature(request: InboxRequest, record: QuestionRecord, decision: Decision) -> Response | None:
    """A challenge while there is no signature; None once one was counted, and the decision may be recorded as signed.

    Raises:
        SignatureRefused: there is one, and it does not count.
    """
    if not can_sign(request, record):
        raise SignatureRefused("a signature by you is of no use for this call")
    if decision.modified_args is not None:
        raise SignatureRefused("edited arguments are kept first, and signed as they then stand")
    place, keyring = find_relying_party(request), Keyring(request.service.engine.store)
    if place is None:
        raise SignatureRefused("keys cannot be used at this address")
    statement = SignedStatement(
        execution_id=record.execution.execution_id,
        suspension_id=record.row.suspension_id,
        digest=record.view.digest,
        content="" if decision.content is None else digest(decision.content, context="approval-answer/v1"),
    )
    if request.form_value("signature"):
        await keyring.record_signature(
            request.session, place, statement, request.form_value("nonce"), request.form_value("signature")
        )
        return None
    if not request.wants_json:
        raise SignatureRefused("signing needs script, which did not run; nothing was decided")
    try:
        return JSONResponse(await keyring.request_signature(request.session, place, statement))
    except UsageError as error:
        return JSONResponse({"message": error.message}, status_code=422)

"""Signing on the page of a question: whether this person may, the challenge, and the signature that comes back.

The page's form is sent twice to the same address: first by the script, which is given a challenge for the answer that
stands in the form, then with the signature of it. Both times the same answer is made of the same fields.
"""

from starlette.responses import JSONResponse, Response

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import UsageError
from planwarden.server.inbox.address import BASE
from planwarden.server.inbox.keys.place import KeyObstacle, obstacle, place_of
from planwarden.server.inbox.lookup import FoundQuestion
from planwarden.server.inbox.request import InboxRequest
from planwarden.server.signatures.keyring import Keyring, SignedStatement
from planwarden.server.signatures.signature import SignatureRefused
from planwarden.storage.ports.keys import HasKeys


def may_sign(visit: InboxRequest, asked: FoundQuestion) -> bool:
    """Whether this person's approval counts with a signature and does not without."""
    gate, question = visit.service.engine.grants.gate, asked.found.question
    name, owner = visit.session.principal, asked.row.principal
    if not isinstance(visit.service.engine.store, HasKeys):
        return False
    has_voted = any(gate.person(vote.principal) == gate.person(name) for vote in asked.found.endorsements)
    worth = [gate.worth(assurance, name, owner, question.needs) for assurance in ("human", "signed")]
    return asked.shown.is_open and not has_voted and worth[0] is None and worth[1] is not None


async def hindrance(visit: InboxRequest, asked: FoundQuestion) -> KeyObstacle | None:
    """What keeps a person who may sign from it."""
    found = obstacle(visit, f"{BASE}/suspensions/{asked.row.suspension_id}")
    place = place_of(visit)
    if found is not None or place is None:
        return found
    usable = await Keyring(visit.service.engine.store).usable(visit.session.principal)
    if any(key.rp_id == place.rp_id for key in usable):
        return None
    return KeyObstacle(
        text="This call is approved with a key of yours, and you have none here.", link=f"{BASE}/keys", action="Add one"
    )


async def signature(visit: InboxRequest, asked: FoundQuestion, decision: Decision) -> Response | None:
    """A challenge while there is no signature; None once one was counted, and the decision may be recorded as signed.

    Raises:
        SignatureRefused: there is one, and it does not count.
    """
    if not may_sign(visit, asked):
        raise SignatureRefused("a signature by you is of no use for this call")
    if decision.modified_args is not None:
        raise SignatureRefused("edited arguments are kept first, and signed as they then stand")
    place, keyring = place_of(visit), Keyring(visit.service.engine.store)
    if place is None:
        raise SignatureRefused("keys cannot be used at this address")
    statement = SignedStatement(
        execution_id=asked.execution.execution_id,
        suspension_id=asked.row.suspension_id,
        digest=asked.shown.digest,
        content="" if decision.content is None else digest(decision.content, context="approval-answer/v1"),
    )
    if visit.given("signature"):
        await keyring.sign(visit.session, place, statement, visit.given("nonce"), visit.given("signature"))
        return None
    if not visit.wants_json:
        raise SignatureRefused("signing needs script, which did not run; nothing was decided")
    try:
        return JSONResponse(await keyring.ask(visit.session, place, statement))
    except UsageError as error:
        return JSONResponse({"message": error.message}, status_code=422)

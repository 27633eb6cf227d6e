"""`approve SUSPENSION --code CODE --digest DIGEST`: a person's approval where planwarden cannot ask anybody.

`planwarden inbox` shows the code on a terminal. The code says who approves, and it is valid once. The digest was next
to the question that the person read, so a question that was revised since then is not approved.
"""

import time

from msgspec.structs import replace

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import AlreadyDecided, Expired, InvalidArguments, StaleRevision, UsageError
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.server.api.home import Home
from planwarden.server.api.service import Service
from planwarden.server.cli.session import CliSession, check_tools
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.inbox.passphrase import InboxPassphrase
from planwarden.server.inbox.sessions import InboxAccess
from planwarden.server.settings.secrets import find_secrets
from planwarden.server.views.question_text import hash_question
from planwarden.server.views.suspension import Suspension

CHANNEL = "code"


def approve_with_code(session: CliSession, beginning: str, code: str, digest: str) -> ExecutionState:
    """Approve exactly the question that the digest names, as the person whom the code names, and continue.

    Raises:
        UsageError: the question is not open, has another digest, or needs more than a yes.
        CodeRefused: the code is not valid; nothing was decided.
    """
    home = session.home
    suspension, execution, owner = home.run(lambda service: _read_question(home, service, beginning), "reader")
    _check_question(home, suspension, digest)
    check_tools(home, execution)
    terminal_question.show(session.terminal, suspension.card, is_cut=False)

    async def start(service: Service) -> ExecutionState:
        # Redeem the code last, so that no other mistake uses it up. The session that it opens is not needed.
        access = InboxAccess(service.store)
        opened = await access.redeem(code)
        principal = opened.session.principal
        await access.end_session(opened.token, principal)
        authority = Authority(
            assurance="human",
            channel=CHANNEL,
            principal=principal,
            digest=suspension.digest,
            rendered=hash_question(suspension.card),
        )
        decision = Decision(approved=True)
        place = (suspension.thread_id, suspension.suspension_id)
        return (await service.answer(*place, decision, authority, principal=owner))[0]

    return replace(session, says_yes=False).run_and_watch(start)


def _check_question(home: Home, suspension: Suspension, digest: str) -> None:
    digest = digest.strip().lower()
    least = terminal_question.MIN_DIGEST_CHARS
    if len(digest) < least:
        command = home.command("show", suspension.thread_id)
        raise InvalidArguments(f"--digest takes at least {least} digits, as `{command}` shows them")
    if not suspension.digest.startswith(digest):
        raise StaleRevision(
            f"suspension {suspension.suspension_id!r} is not what that digest names; it may have been revised: "
            "read it again"
        )
    if suspension.answer_schema is not None:
        raise UsageError("this question asks for more than yes; answer it in the inbox or in a terminal")
    if suspension.expires_at is not None and suspension.expires_at.timestamp() <= time.time():
        raise Expired(f"the time to answer suspension {suspension.suspension_id!r} has passed")


async def _read_question(home: Home, service: Service, beginning: str) -> tuple[Suspension, ExecutionState, str]:
    """Return the open question, its execution and the principal that owns both."""
    if await InboxPassphrase(home.settings, find_secrets(home.settings, service.store)).is_asked():
        raise UsageError("the inbox asks for a passphrase in addition to a code, so approve there or in a terminal")
    row = await home.find_suspension(service.store, beginning)
    view, is_open = await service.read_question(row.thread_id, row.suspension_id, principal=None)
    if view.addressee != "human":
        raise UsageError(f"suspension {row.suspension_id!r} is not for a person")
    if not is_open:
        raise AlreadyDecided(f"suspension {row.suspension_id!r} was decided before; the first answer counts")
    return view, await service.find(row.execution_id), row.principal

"""The command `approve SUSPENSION --code CODE --digest DIGEST`: a person's approval where nobody can be asked.

The code is one of those that `planwarden inbox` shows on a terminal; it says who approves and is used up. The digest is
the one that stood with the question where the person read it, so that nothing is approved that was revised since.
"""

import time
from dataclasses import replace

import anyio

from planwarden.agent.approval.answers import Authority, Decision
from planwarden.agent.common.errors import AlreadyDecided, Expired, InvalidArguments, StaleRevision, UsageError
from planwarden.agent.core.state import ExecutionState
from planwarden.server.api.service import Service
from planwarden.server.cli.commands.run import CliSession, check_tools
from planwarden.server.cli.home import CliHome, find
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.inbox.sessions import InboxAccess
from planwarden.server.views.facts import shown_digest
from planwarden.server.views.suspension import Suspension

CHANNEL = "code"
DIGEST_CHARS = 12
"""Of the digest, at least; `planwarden list` shows so many."""


def approve_with_code(desk: CliSession, suspension_id: str, code: str, digest: str) -> ExecutionState:
    """Approve exactly what the digest names, as whoever the code is for, and go on with the execution.

    Raises:
        UsageError: the question is not open, not the one of the digest, or cannot be approved with yes alone.
        CodeRefused: the code is not valid; nothing was decided.
    """
    suspension, owner = anyio.run(_question, desk.home, suspension_id)
    _check(suspension, digest)
    execution = anyio.run(_execution, desk.home, suspension_id)
    check_tools(desk.home, execution)
    terminal_question.show(desk.terminal, suspension)

    async def start(service: Service) -> ExecutionState:
        # Redeemed last, so that a mistake in anything else does not spend it; its session is not kept.
        access = InboxAccess(service.engine.store)
        opened = await access.redeem(code)
        principal = opened.session.principal
        await access.end(opened.token, principal)
        authority = Authority(
            assurance="human",
            channel=CHANNEL,
            principal=principal,
            digest=suspension.digest,
            rendered=shown_digest(suspension),
        )
        view = await service.answer(
            suspension.thread_id, suspension_id, Decision(approved=True), authority, wait_seconds=0, principal=owner
        )
        return await service.engine.find(view.execution_id)

    return replace(desk, says_yes=False).follow(start)


def _check(suspension: Suspension, digest: str) -> None:
    wanted = digest.strip().lower()
    if len(wanted) < DIGEST_CHARS:
        raise InvalidArguments(f"--digest takes at least {DIGEST_CHARS} digits, as `planwarden list` shows them")
    if not suspension.digest.startswith(wanted):
        raise StaleRevision(
            f"suspension {suspension.suspension_id!r} is not what that digest names; it may have been revised: look again"
        )
    if suspension.answer_schema is not None:
        raise UsageError("this question asks for more than yes; answer it in the inbox or in a terminal")
    if suspension.expires_at is not None and suspension.expires_at.timestamp() <= time.time():
        raise Expired(f"the time to answer suspension {suspension.suspension_id!r} has passed")


async def _question(home: CliHome, suspension_id: str) -> tuple[Suspension, str]:
    if home.settings.passphrase_file is not None:
        raise UsageError("[inbox] asks for a passphrase besides a code, so approve in the inbox or in a terminal")
    async with home.looking() as service:
        row, _ = await find(service, suspension_id)
        view, is_open = await service.question(row.thread_id, suspension_id, principal=None)
        if view.addressee != "human":
            raise UsageError(f"suspension {suspension_id!r} is not for a person")
        if not is_open:
            raise AlreadyDecided(f"suspension {suspension_id!r} was decided before; the first answer stands")
        return view, row.principal


async def _execution(home: CliHome, suspension_id: str) -> ExecutionState:
    async with home.looking() as service:
        return (await find(service, suspension_id))[1]

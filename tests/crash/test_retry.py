"""A crash at every store call of a retry: nothing that was done is done again, and nothing is lost.

After the crash a new process opens the same store. Somebody retries again if the first retry left no trace, and answers
truthfully, from the ledger of effects, what became of a call.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import NotRetryable, ThreadBusy, ToolError
from tests.harness.fault import MOMENTS, When, crash_at_every_call
from tests.harness.ledger import Ledger
from tests.harness.person import Person
from tests.kit import confirm, plan, requirement, tool_step, warden
from tests.storage.suite import BackEnd
from tests.support.fakes import CrashingStore, recording_tool

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("only_turns_that_are_asked_for")]

STEPS = plan(
    tool_step("one", "note"),
    tool_step("two", "mend"),
    confirm("ask"),
    tool_step("three", "note"),
)


class Workshop:
    """A plan that fails until somebody has repaired `mend`, and is then retried."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.is_mended, self.failed = Ledger(folder / "effects"), False, ("", "")

    def tools(self) -> list[object]:
        async def check() -> None:
            if not self.is_mended:
                raise ToolError("it is broken")

        return [recording_tool(self.ledger, "note"), recording_tool(self.ledger, "mend", before=check)]

    async def fail(self, back_end: BackEnd) -> None:
        async with warden(tools=self.tools(), store=back_end.connect()) as made:
            failed = await made.execute_plan(STEPS)
        assert failed.status == "failed"
        self.is_mended, self.failed = True, (failed.thread_id, failed.execution_id)

    async def retry(self, back_end: BackEnd, store: CrashingStore) -> None:
        try:
            async with warden(tools=self.tools(), store=store) as dying:
                view = await dying.retry(self.failed[0], wait_seconds=60)
                [question] = view.suspensions
                await dying.resume_execution(self.failed[0], question.suspension_id, Decision(approved=True))
        except* (NotRetryable, ThreadBusy):
            pass

    async def finish(self, back_end: BackEnd) -> None:
        """A process that is left in peace brings the retry to its end."""
        thread_id, first = self.failed
        async with warden(tools=self.tools(), store=back_end.connect()) as made:
            while (view := await made.get_execution(thread_id)).execution_id == first:
                # What the process that died had sent may be stored a moment later.
                with suppress(ThreadBusy, NotRetryable):
                    view = await made.retry(thread_id, wait_seconds=0)
            engine = made.service.engine
            person = Person(engine, back_end.clock, self.ledger, wait_s=0.2)
            done = await person.drive(await engine.find(view.execution_id))
            assert (done.status, view.retry_of) == ("completed", first)
        assert self.ledger.tools_run() == ["note", "mend", "note"]


@requirement("retry:once", "crash:every-call")
@pytest.mark.parametrize(("when", "kind"), MOMENTS)
async def test_a_crash_at_any_store_call_of_a_retry_doubles_and_loses_nothing(
    tmp_path: Path, when: When, kind: Callable[[Path], BackEnd]
) -> None:
    await crash_at_every_call(tmp_path, kind, when, Workshop, Workshop.retry, Workshop.finish, Workshop.fail)

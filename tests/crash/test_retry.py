"""A crash at every store call of a retry: nothing that was done is done again, and nothing is lost.

After the crash a new process opens the same store. Somebody retries again if the first retry left no trace, and answers
truthfully, from the ledger of effects, what became of a call.
"""

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Literal

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import NotRetryable, ThreadBusy
from planwarden.agent.ports.store import Store
from tests.crash.moments import MOMENTS
from tests.requirements import requirement
from tests.storage.suite import Memory, Postgres, Sqlite
from tests.support.fakes import Crash, CrashingStore
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("only_turns_that_are_asked_for")]

DONE = ["note first", "mend second", "note third"]


class Workshop:
    """`mend` works once `is_mended`."""

    def __init__(self) -> None:
        self.ledger, self.is_mended = Ledger(), False

    def tools(self) -> list[object]:
        @planwarden.tool(name="mend", risk="read", effect="effect")
        async def mend(text: str) -> JsonValue:
            """Works once it is mended."""
            if not self.is_mended:
                raise planwarden.ToolError("it is broken")
            self.ledger.lines.append(f"mend {text}")
            return {"mended": text}

        return [*self.ledger.tools(), mend]

    async def answer(self, made: planwarden.Warden, thread_id: str, question: planwarden.Suspension) -> None:
        """What a person says who looked at the ledger."""
        content: JsonValue = None
        if question.kind == "reconcile":
            assert question.tool_call is not None
            text = question.tool_call.arguments["text"]
            happened = f"{question.tool_call.tool_name} {text}" in self.ledger.lines
            content = {"happened": True, "result": {"said": text}} if happened else {"happened": False}
        decision = Decision(approved=True, content=content)
        await made.resume_execution(thread_id, question.suspension_id, decision)


STEPS = plan(
    tool_step("one", "note", {"text": "first"}),
    tool_step("two", "mend", {"text": "second"}),
    confirm("ask"),
    tool_step("three", "note", {"text": "third"}),
)


async def finish(workshop: Workshop, back_end: Memory | Sqlite | Postgres, thread_id: str, first: str) -> str:
    """The status when a process that is left in peace has brought the retry to its end."""
    async with warden(tools=workshop.tools(), store=back_end.connect()) as made:
        while True:
            view = await made.get_execution(thread_id)
            if view.execution_id == first:
                # What the process that died had sent may be stored a moment later.
                with suppress(ThreadBusy, NotRetryable):
                    view = await made.retry(thread_id, wait_seconds=0)
                if view.execution_id == first:
                    continue
            if view.status == "running":
                back_end.clock.advance(30)
                await made.service.engine.tick()
                await made.service.engine.wait(await made.service.engine.find(view.execution_id), 0.2)
            elif view.status == "suspended":
                await workshop.answer(made, thread_id, view.suspensions[0])
            else:
                assert view.retry_of == first
                return view.status


@requirement("retry:once", "crash:every-call")
@pytest.mark.parametrize(("when", "kind"), MOMENTS)
async def test_a_crash_at_any_store_call_of_a_retry_doubles_and_loses_nothing(
    tmp_path: Path, when: Literal["before", "after"], kind: type[Memory | Sqlite | Postgres]
) -> None:
    for at in count(1):
        folder = tmp_path / str(at)
        folder.mkdir()
        back_end, workshop = kind(folder), Workshop()
        try:
            async with warden(tools=workshop.tools(), store=back_end.connect()) as made:
                failed = await made.execute_plan(STEPS)
            assert failed.status == "failed"
            workshop.is_mended = True
            store: Store = back_end.connect()
            crashing = CrashingStore(store, at=at, when=when)
            try:
                async with warden(tools=workshop.tools(), store=crashing) as dying:
                    view = await dying.retry(failed.thread_id, wait_seconds=60)
                    await workshop.answer(dying, failed.thread_id, view.suspensions[0])
            except* (Crash, NotRetryable, ThreadBusy):
                pass
            except* planwarden.PlanwardenError:
                assert crashing.is_dead
            with anyio.fail_after(120):
                assert await finish(workshop, back_end, failed.thread_id, failed.execution_id) == "completed", at
            assert workshop.ledger.lines == DONE, at
        finally:
            await back_end.close()
        if not crashing.is_dead:
            assert at > 8
            return

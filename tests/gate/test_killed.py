"""A gate is killed at each commit of a call that a person decides about; then the host makes the identical call."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count, product
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

from planwarden.agent.common.errors import PlanwardenError
from tests.gate.host import APPROVE, Home, Host, read_text
from tests.gate.test_ways_to_wait import CONFIRM, FORMS, TASKS
from tests.kit import Decision, first_only, requirement

ARGUMENTS = {"text": "a"}
HOSTS: dict[str, dict[str, Any]] = {
    "task": {"newer": {**TASKS, **FORMS}},
    "form": {"capabilities": FORMS},
    "input required": {"newer": FORMS},
    "held": {},
}
LAST = 9
"""The gate opens, the tool's definition, the question, a claim if another process decides, decision and intent, the
result, the delivery, and the gate's end. A slow machine renews leases in between."""
FIRST = (("task", "after", 4), ("form", "before", 5), ("input required", "after", 5), ("held", "after", 3))
"""The effect is about to happen, it has happened, its result is stored; the question is open."""
OTHERS = tuple(row for row in product(HOSTS, ("before", "after"), range(1, LAST + 1)) if row not in FIRST)


class Client:
    """A host of one kind, whose person approves, and says truthfully what happened."""

    def __init__(self, home: Home, host: Host) -> None:
        self._home, self.host = home, host

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        asks_what_happened = "happened" in question["params"]["requestedSchema"]["properties"]
        content = {"happened": bool(self._home.ledger)} if asks_what_happened else {"decision": "approve"}
        return {"action": "accept", "content": content}

    async def call(self) -> str:
        """Return the text of the server's own result, or of what a person found out."""
        more: dict[str, Any] = {}
        while True:
            result = await self.host.call("write", ARGUMENTS, **more)
            if result.get("resultType") == "task":
                result = await self._follow(result)
            if result.get("resultType") == "input_required":
                more = {"inputResponses": self._answer_all(result), "requestState": result["requestState"]}
            elif "nobody knows whether it happened" in (text := read_text(result)):
                await anyio.sleep(0.05)
            else:
                return text

    def _answer_all(self, result: dict[str, Any]) -> dict[str, Any]:
        return {key: self.answer(question) for key, question in result["inputRequests"].items()}

    async def _follow(self, task: dict[str, Any]) -> dict[str, Any]:
        while task["status"] != "completed":
            await anyio.sleep(0.02)
            about = {"taskId": task["taskId"]}
            task = (await self.host.ask("tasks/get", about))["result"]
            if task["status"] == "input_required":
                await self.host.ask("tasks/update", {**about, "inputResponses": self._answer_all(task)})
        return task["result"]

    async def answer_forms(self) -> None:
        """Answer what the gate asks outside of results."""
        for number in count():
            while len(self.host.notes) <= number:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            note = self.host.notes[number]
            if note["method"] == "elicitation/create":
                await self.host.send({"id": note["id"], "result": self.answer(note)})


async def decide(home: Home, kinds: frozenset[str]) -> None:
    """Decide about questions of these kinds, as a program of the operator."""
    while not list((home.folder / "gate").glob("*.json")):  # noqa: ASYNC110
        await anyio.sleep(0.02)
    async with home.open() as warden:
        while True:
            for question in (await warden.list_suspensions()).suspensions:
                if question.kind in kinds:
                    is_about_past = question.kind == "reconcile"
                    happened: JsonValue = {"happened": bool(home.ledger), "result": "seen"}
                    decision = Decision(approved=True, content=happened) if is_about_past else APPROVE
                    with suppress(PlanwardenError):
                        # The gate that asks has seen more than this process, or the host was faster.
                        await warden.resume_execution(question.thread_id, question.suspension_id, decision)
            await anyio.sleep(0.05)


@asynccontextmanager
async def life(home: Home, kind: str, dies: tuple[int, str], decides: set[str]) -> AsyncGenerator[Client]:
    """Run a gate whose end, if it is killed, ends the block."""
    async with anyio.create_task_group() as tasks, home.host(tasks, dies=dies, **HOSTS[kind]) as host:
        client = Client(home, host)

        async def end_with_gate() -> None:
            await host.has_ended.wait()
            # What it wrote before its end counts.
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_with_gate)
        tasks.start_soon(client.answer_forms)
        tasks.start_soon(decide, home, frozenset(decides))
        with suppress(anyio.BrokenResourceError):
            yield client
        tasks.cancel_scope.cancel()


def is_served(home: Home) -> bool:
    """Return whether a process of the server lives, which may still do what it was sent."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(home.peer).encode() in path.read_bytes().split(b"\0"):
                return True
    return False


@requirement("gate:killed")
@pytest.mark.parametrize(("kind", "when", "at"), first_only(*FIRST, *OTHERS, keep=len(FIRST)))
async def test_gate_that_is_killed_at_any_commit_loses_no_call_and_repeats_none(
    tmp_path: Path, kind: str, when: str, at: int
) -> None:
    home = Home(tmp_path, more="" if kind == "held" else CONFIRM)
    decides = {"approval"} if kind == "held" else set[str]()
    text = ""
    with anyio.fail_after(100):
        async with life(home, kind, (at, when), decides) as client:
            text = await client.call()
            # What follows the answer has happened, too.
            await client.host.ask("ping", {})
        while is_served(home):  # noqa: ASYNC110
            await anyio.sleep(0.02)
        if not text:
            async with life(home, kind, (0, "never"), {*decides, "reconcile"}) as client_of_next_gate:
                text = await client_of_next_gate.call()
    assert home.ledger == [["write", ARGUMENTS]]
    assert "write {'text': 'a'} []" in text or "as a person found out" in text

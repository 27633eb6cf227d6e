"""Loops: calls for each item, proven for each, that take each other's results, and are asked about in one question."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidArguments, ToolError
from planwarden.server.cli.checks.store import replay_logs
from tests.kit import Decision, Execution, Ledger, MemoryStore, by, decide, plan, requirement, tool_step, warden
from tests.support.wardens import run

Json = dict[str, JsonValue]
ITEM: Json = {"$from": "item"}


def loop(step_id: str, tool: str, arguments: Json, items: JsonValue, **extra: JsonValue) -> Json:
    return tool_step(step_id, tool, arguments, forEach=items, **extra)


def wipe(*items: JsonValue) -> Json:
    return loop("wipe", "erase", {"ids": [ITEM]}, list(items))


@planwarden.tool(name="picky", risk="read", effect="read")
async def picky(number: int) -> int:
    """Doubles even numbers."""
    if number % 2:
        raise ToolError(f"{number} is odd")
    return 2 * number


@requirement("loops:each")
async def test_a_loop_calls_its_tools_once_for_each_item_and_returns_the_list_of_their_values() -> None:
    text: JsonValue = {"$text": "{i}: {id}", "with": {"i": {"$from": "itemIndex"}, "id": ITEM}}
    done, lines = await run(
        tool_step("find", "find", {"topic": "t"}),
        loop("write", "note", {"text": text}, {"$from": "find", "pointer": "/ids"}),
        tool_step("last", "note", {"text": {"$from": "write", "pointer": "/2/written"}}),
        loop("none", "note", {"text": "x"}, []),
    )
    assert (done.status, lines) == ("completed", ["note 0: 1", "note 1: 2", "note 2: 3", "note 2: 3"])
    assert done.steps[1].validation_status == "passed"
    # Nothing is proven by no call.
    assert (done.steps[3].validation_status, done.steps[3].result) == ("skipped", [])


GOES_ON: Json = {"onItemFailure": "continue", "toolValidationMode": "advisory"}


@requirement("loops:failure", "loops:faults")
@pytest.mark.parametrize(
    ("items", "extra", "status", "results"),
    [
        ([0, 1, 2, 3], {}, "failed", [0, None, None, None]),
        ([0, 1, 2, 3], {"onItemFailure": "continue"}, "failed", [0, None, 4, None]),
        ([0, 1, 2, 3], GOES_ON, "completed", [0, None, 4, None]),
        ([2, "what no call takes", 4], GOES_ON, "completed", [4, None, 8]),
    ],
)
async def test_an_item_that_failed_stops_the_others_or_leaves_a_gap(
    items: JsonValue, extra: Json, status: str, results: list[JsonValue]
) -> None:
    async with warden(tools=[picky]) as w:
        done = await w.execute_plan(plan(loop("a", "picky", {"number": ITEM}, items, **extra)))
        state = await w.service.find(done.execution_id)
    [step] = done.steps
    assert (done.status, step.status, step.validation_status) == (status, status, "failed")
    assert state.steps["a"].result == results
    if step.status == "failed":
        assert step.error is not None and "items failed; index 1: picky failed: 1 is odd" in step.error.message


@requirement("loops:batch")
async def test_calls_that_need_a_person_are_asked_about_once_and_approved_row_by_row() -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(wipe(7, 8, 9), tool_step("end", "note", {"text": "end"})))
        [question] = asked.suspensions
        assert (question.kind, question.tool_call) == ("approval", None) and ledger.lines == []
        ids = [(call.call_id, call.arguments) for call in question.calls]
        assert ids == [(f"wipe:{n}", {"ids": [n + 6]}) for n in (1, 2, 3)] and "one a row" in question.found[0]
        # No model can choose.
        chosen = Decision(approved=True, content={"items": [0, 2]})
        still = await decide(w, asked, chosen, by("local", "claimed"))
        assert (still.status, still.awaiting, ledger.lines) == ("suspended", "human", [])
        done = await decide(w, asked, chosen)
        [alone] = (await w.execute_plan(plan(wipe(7)))).suspensions
    assert (done.status, ledger.lines) == ("completed", ["erase [7]", "erase [9]", "note end"])
    assert done.steps[0].result == [{"erased": 1}, None, {"erased": 1}]
    shown = [(call.status, call.arguments) for call in done.steps[0].actual_tool_calls]
    assert shown == [("succeeded", {"ids": [7]}), ("rejected", {"ids": [8]}), ("succeeded", {"ids": [9]})]
    # Of one call there is nothing to choose.
    assert (len(alone.calls), alone.found) == (1, ())


@requirement("loops:batch")
async def test_a_step_goes_on_after_a_no_to_some_calls_of_every_item_and_is_rejected_after_a_no_to_all() -> None:
    ledger = Ledger()
    calls: list[JsonValue] = [{"toolName": "erase", "arguments": {"ids": [number, ITEM]}} for number in (1, 2)]
    step: Json = {"id": "wipe", "description": "wipe", "forEach": [7, 8], "toolCalls": calls}
    async with warden(ledger) as w:
        some = await decide(w, await w.execute_plan(plan(step)), Decision(approved=True, content={"items": [0, 2]}))
        assert (some.status, ledger.lines) == ("completed", ["erase [1, 7]", "erase [1, 8]"])
        assert [call.status for call in some.steps[0].actual_tool_calls] == ["succeeded", "rejected"] * 2
        none = await decide(w, await w.execute_plan(plan(step)), Decision(approved=False))
    assert (none.status, none.steps[0].status, len(ledger.lines)) == ("rejected", "rejected", 2)


@requirement("loops:batch")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"content": {"items": []}}, "names no row"),
        ({"content": {"items": [2]}}, "from 0 to 1"),
        ({"content": {"items": [0, 0]}}, "each row once"),
        ({"content": {"rows": [0]}}, "must name the rows"),
        ({"modified_args": {"2": {"ids": [1]}}}, "by their place"),
        # Two keys never mean the same row.
        ({"modified_args": {"1": {"ids": [1]}, "01": {"ids": [2]}}}, "by their place"),
        ({"modified_args": {"\u0661": {"ids": [1]}}}, "by their place"),
    ],
)
async def test_an_answer_that_names_no_row_of_the_question_decides_nothing(said: dict[str, Any], why: str) -> None:
    ledger = Ledger()
    async with warden(ledger) as w:
        asked = await w.execute_plan(plan(wipe(7, 8)))
        with pytest.raises(InvalidArguments, match=why):
            await decide(w, asked, Decision(approved=True, **said))
        assert (await w.get_execution(asked.thread_id)).status == "suspended" and ledger.lines == []


@requirement("loops:faults")
@pytest.mark.parametrize(
    ("pointer", "why"),
    [
        ("/topic", "which is not a list"),
        ("/no", "has nothing there: the object has only 'ids', 'topic'"),
        ("", "has lists at '/ids'"),
        ("/ids", "3 items, the step allows 2"),
    ],
)
async def test_items_that_are_no_list_or_too_many_fail_the_step(pointer: str, why: str) -> None:
    step = loop("a", "note", {"text": "x"}, {"$from": "find", "pointer": pointer}, maxItems=2)
    done, lines = await run(tool_step("find", "find", {"topic": "t"}), step)
    assert done.status == "failed" and lines == []
    assert done.steps[1].error is not None and why in done.steps[1].error.message


EMAIL: Json = {"$from": "item", "call": 0, "pointer": "/email"}


@dataclass
class Office:
    """Customers, and what was really done to them, in order."""

    emails: dict[str, JsonValue]
    padding: str = ""
    """Makes what is looked up so large that it is kept as an artifact."""
    lines: list[str] = field(default_factory=list[str])

    def tools(self) -> list[object]:
        @planwarden.tool(name="overdue", risk="read", effect="read")
        async def overdue() -> list[JsonValue]:
            """Finds the customers who owe something."""
            return [{"id": customer, "owes": 100 + place} for place, customer in enumerate(self.emails)]

        @planwarden.tool(name="customer", risk="read", effect="read")
        async def customer(id: str) -> dict[str, JsonValue]:
            """Finds the address of a customer."""
            self.lines.append(f"looked up {id}")
            if self.emails[id] == "gone":
                raise ToolError(f"customer {id} left")
            found: Json = {} if self.emails[id] is None else {"email": self.emails[id]}
            return {**found, "padding": self.padding}

        @planwarden.tool(name="mail")
        async def mail(to: str, body: str) -> dict[str, JsonValue]:
            """Sends a mail."""
            self.lines.append(f"mailed {to}: {body}")
            return {"sent": to}

        return [overdue, customer, mail]

    @property
    def mails(self) -> list[str]:
        return [line for line in self.lines if line.startswith("mailed")]


def mail_call(**arguments: JsonValue) -> Json:
    body: JsonValue = {"$text": "You owe {owes}", "with": {"owes": {"$from": "item", "pointer": "/owes"}}}
    return {"toolName": "mail", "arguments": {"to": EMAIL, "body": body, **arguments}}


LOOK_UP: Json = {"toolName": "customer", "arguments": {"id": {"$from": "item", "pointer": "/id"}}}


def remind(*calls: Json, **extra: JsonValue) -> Json:
    step: Json = {
        "id": "remind",
        "description": "Remind every overdue customer",
        "forEach": {"$from": "find"},
        "toolCalls": list(calls) or [LOOK_UP, mail_call()],
    }
    return plan(tool_step("find", "overdue"), {**step, **extra})


def rows(execution: Execution) -> list[JsonValue]:
    [question] = execution.suspensions
    return [call.arguments["to"] for call in question.calls]


@requirement("loops:calls")
@pytest.mark.parametrize(("concurrent", "padding"), [(1, ""), (2, "x" * 300_000), (32, "")])
async def test_every_customer_is_looked_up_first_and_one_question_has_a_row_for_each_mail_in_any_process(
    concurrent: int, padding: str
) -> None:
    office, store = Office({"a": "a@x", "b": "b@x", "c": "c@x"}, padding), MemoryStore()
    async with warden(tools=office.tools(), store=store) as w:
        asked = await w.execute_plan(remind(maxConcurrent=concurrent), wait_seconds=60)
        assert rows(asked) == ["a@x", "b@x", "c@x"] and office.mails == []
    async with warden(tools=office.tools(), store=store) as w:
        done = await decide(w, asked, Decision(approved=True, content={"items": [0, 2]}))
    assert (done.status, office.mails) == ("completed", ["mailed a@x: You owe 100", "mailed c@x: You owe 102"])
    assert sorted(office.lines[:3]) == ["looked up a", "looked up b", "looked up c"] and len(office.lines) == 5


@requirement("loops:calls")
async def test_calls_that_take_each_others_results_run_in_waves_and_each_wave_asks_once() -> None:
    office = Office({"a": "a@x", "b": "b@x"})
    second = mail_call(to={"$from": "item", "call": 1, "pointer": "/sent"})
    third = mail_call(to={"$text": "cc-{to}", "with": {"to": EMAIL}})
    async with warden(tools=office.tools()) as w:
        asked = await w.execute_plan(remind(LOOK_UP, mail_call(), second, third), wait_seconds=60)
        # Only the second mail takes what the first one returns.
        assert rows(asked) == ["a@x", "cc-a@x", "b@x", "cc-b@x"]
        asked = await decide(w, asked)
        assert rows(asked) == ["a@x", "b@x"]
        done = await decide(w, asked)
    assert done.status == "completed" and len(office.mails) == 6


@requirement("loops:calls")
@pytest.mark.parametrize("broken", ["gone", None, 7])
async def test_a_customer_without_an_address_stops_the_loop_before_the_question_or_is_a_gap(broken: JsonValue) -> None:
    office, store = Office({"a": "a@x", "b": broken, "c": "c@x"}), MemoryStore()
    async with warden(tools=office.tools(), store=store) as w:
        stopped = await w.execute_plan(remind(), wait_seconds=60)
        assert (stopped.status, stopped.suspensions, office.mails) == ("failed", (), [])
        assert stopped.error is not None and "index 1" in stopped.error.message
        goes_on = remind(onItemFailure="continue", toolValidationMode="advisory")
        asked = await w.execute_plan(goes_on, wait_seconds=60)
        assert rows(asked) == ["a@x", "c@x"]
        found = asked.suspensions[0].found
        assert any("1 of 3 items failed and has no row; index 1" in sentence for sentence in found)
        done = await decide(w, asked)
        assert (await replay_logs(store, has_finished=True)).faults == []
    assert (done.status, done.steps[1].validation_status) == ("completed", "failed")
    assert [line[:10] for line in office.mails] == ["mailed a@x", "mailed c@x"]


async def test_a_loop_of_more_calls_than_its_limit_makes_none() -> None:
    office = Office({"a": "a@x"})
    items: list[JsonValue] = [{"id": "a", "owes": 1}] * 401
    async with warden(tools=office.tools()) as w:
        failed = await w.execute_plan(remind(*[LOOK_UP] * 50, forEach=items, maxItems=500))
    assert failed.error is not None and "at most 20000 calls" in failed.error.message and office.lines == []

"""Loops that look something up for each item and use it in a later call of the same item."""

from dataclasses import dataclass, field

import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import ToolError
from planwarden.server.api.replay import replay_logs
from planwarden.server.views.execution import Execution
from tests.kit import MemoryStore, requirement
from tests.support.wardens import decide, plan, tool_step, warden

pytestmark = pytest.mark.anyio

Json = dict[str, JsonValue]

EMAIL: Json = {"$from": "item", "call": 0, "pointer": "/email"}


@dataclass
class Office:
    """Customers, and what was really done to them, in order."""

    emails: dict[str, JsonValue]
    lines: list[str] = field(default_factory=list[str])
    padding: str = ""
    """Makes what is looked up so large that it is kept as an artifact."""

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
    """Reminds every overdue customer in one step."""
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
@pytest.mark.parametrize("concurrent", [1, 2, 32])
@pytest.mark.parametrize("padding", ["", "x" * 300_000])
async def test_every_customer_is_looked_up_first_and_one_question_has_a_row_for_each_mail(
    concurrent: int, padding: str
) -> None:
    office = Office({"a": "a@x", "b": "b@x", "c": "c@x"}, padding=padding)
    async with warden(tools=office.tools()) as w:
        asked = await w.execute_plan(remind(maxConcurrent=concurrent), wait_seconds=60)
        assert rows(asked) == ["a@x", "b@x", "c@x"] and office.mails == []
        done = await decide(w, asked, Decision(approved=True, content={"items": [0, 2]}))
    assert (done.status, office.mails) == ("completed", ["mailed a@x: You owe 100", "mailed c@x: You owe 102"])
    assert sorted(office.lines[:3]) == ["looked up a", "looked up b", "looked up c"]


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
async def test_a_customer_without_an_address_stops_the_loop_before_a_person_is_asked_or_is_named_as_a_gap(
    broken: JsonValue,
) -> None:
    office, store = Office({"a": "a@x", "b": broken, "c": "c@x"}), MemoryStore()
    async with warden(tools=office.tools(), store=store) as w:
        stopped = await w.execute_plan(remind(), wait_seconds=60)
        assert (stopped.status, stopped.suspensions, office.mails) == ("failed", (), [])
        assert stopped.error is not None and "item 1" in stopped.error.message
        goes_on = remind(onItemFailure="continue", toolValidationMode="advisory")
        asked = await w.execute_plan(goes_on, wait_seconds=60)
        assert rows(asked) == ["a@x", "c@x"]
        found = asked.suspensions[0].found
        assert any("1 of 3 items failed and has no row; item 1" in sentence for sentence in found)
        done = await decide(w, asked)
        assert (await replay_logs(store, has_finished=True)).faults == []
    assert (done.status, done.steps[1].validation_status) == ("completed", "failed")
    assert [line[:10] for line in office.mails] == ["mailed a@x", "mailed c@x"]


@requirement("loops:calls")
async def test_a_default_stands_for_an_address_that_the_customer_does_not_have_also_in_a_loop_over_texts() -> None:
    office = Office({"a": None, "b": "b@x"})
    look_up: Json = {"toolName": "customer", "arguments": {"id": {"$from": "item"}}}
    mail = mail_call(to={**EMAIL, "default": "office@x"}, body="hello")
    async with warden(tools=office.tools()) as w:
        for steps in (remind(LOOK_UP, mail), remind(look_up, mail, forEach=["a", "b"])):
            assert rows(await w.execute_plan(steps, wait_seconds=60)) == ["office@x", "b@x"]


@requirement("loops:calls")
async def test_another_process_goes_on_with_the_same_rows_and_looks_nobody_up_again() -> None:
    office, store = Office({"a": "a@x", "b": "b@x"}), MemoryStore()
    async with warden(tools=office.tools(), store=store) as w:
        asked = await w.execute_plan(remind(), wait_seconds=60)
    async with warden(tools=office.tools(), store=store) as w:
        done = await decide(w, asked)
    assert done.status == "completed" and len(office.lines) == 4


@requirement("loops:calls")
async def test_a_retry_takes_over_what_was_looked_up_and_asks_once_about_the_rest() -> None:
    office = Office({"a": "a@x", "b": "gone", "c": "c@x"})
    async with warden(tools=office.tools()) as w:
        failed = await w.execute_plan(remind(), wait_seconds=60)
        office.emails["b"] = "b@x"
        asked = await w.retry(failed.thread_id, wait_seconds=60)
        assert rows(asked) == ["a@x", "b@x", "c@x"]
        done = await decide(w, asked)
    assert done.status == "completed" and len(office.mails) == 3
    assert sorted(office.lines[:-3]) == ["looked up a", "looked up b", "looked up b", "looked up c"]


@requirement("loops:calls")
async def test_a_rehearsal_reads_and_shows_every_mail_that_would_be_sent() -> None:
    office = Office({"a": "a@x", "b": "b@x"})
    receipt = mail_call(to={"$from": "item", "call": 1, "pointer": "/sent"})
    async with warden(tools=office.tools()) as w:
        done = await w.execute_plan(remind(LOOK_UP, mail_call(), receipt), options={"rehearse": True}, wait_seconds=60)
    assert (done.status, office.mails) == ("rehearsed", [])
    would = [call.arguments["to"] for call in done.steps[1].actual_tool_calls if call.tool_name == "mail"]
    # Nobody knows what the second mail would take from the first one.
    assert would == ["a@x", "b@x"]


async def test_a_loop_of_more_calls_than_its_limit_makes_none() -> None:
    office = Office({"a": "a@x"})
    many: list[JsonValue] = [LOOK_UP] * 50
    items: list[JsonValue] = [{"id": "a", "owes": 1}] * 401
    async with warden(tools=office.tools()) as w:
        failed = await w.execute_plan(remind(forEach=items, maxItems=500, toolCalls=many))
        assert failed.status == "failed" and "at most 20000 calls" in failed.next_action + str(failed.error)
        assert office.lines == []

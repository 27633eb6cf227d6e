"""Calls of downstream tools over stdio and HTTP: approved, sent once, each failure told apart, every answer bounded."""

import json
import os
import resource
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import InvalidPlan, LeaseLost
from planwarden.agent.ports.store import Lease
from planwarden.agent.runtime.adoption import RENEW_S
from planwarden.storage.clock import SystemClock
from tests.kit import Authority, CallerModel, Engine, ManualClock, MemoryStore, first_only, plan, requirement, tool_step
from tests.support.doubles.hostile_http import HttpDouble, http_double
from tests.support.loop_time import pass_time
from tests.support.paths import DOUBLES
from tests.tools.downstream.support import WAIT_S, Place, approve, read_error, run_call, wait_until


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.serve(d="good")
    return found


def read_starts(place: Place) -> list[int]:
    return [int(line.split()[1]) for line in place.ledger if line.startswith("start ")]


@requirement("downstream:link")
async def test_a_server_starts_when_needed_ends_with_the_warden_and_is_known_to_the_next_one(place: Place) -> None:
    async with place.warden() as warden:
        await run_call(warden, "calculator", {"expression": "1+1"})
        assert place.ledger == []
        # A plan with a tool of a server that was never listed waits for the listing.
        execution = await run_call(warden, "d_echo", {"text": "hi"})
        assert execution.status == "completed" and execution.steps[0].result == {"said": "hi"}
        with pytest.raises(planwarden.PlanwardenError, match="unknown tools: 'd_gone'"):
            await run_call(warden, "d_gone")
        [child] = read_starts(place)
        os.kill(child, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    async with place.warden() as warden:
        assert warden.tools.get("d_echo") is not None
        assert (await warden.search_tools("echo")).total == 1
        assert len(read_starts(place)) == 1
        assert (await run_call(warden, "d_echo", {"text": "x"})).status == "completed"
        assert len(read_starts(place)) == 2


WITHOUT_ECHO = "without echo"


@pytest.mark.parametrize(
    "content",
    first_only(WITHOUT_ECHO, "{]", '{"form": 1, "tools": [1, {"name": 2}]}', "", "[]", '{"form": 1}', "\x00", keep=2),
)
async def test_a_kept_listing_that_is_damaged_or_incomplete_is_fetched_again(place: Place, content: str) -> None:
    async with place.warden() as warden:
        await warden.search_tools()
    [cached] = (place.home / "downstream").glob("*.json")
    assert cached.stat().st_mode & 0o077 == 0
    if content == WITHOUT_ECHO:
        listing = json.loads(cached.read_text())
        content = json.dumps(listing | {"tools": [tool for tool in listing["tools"] if tool["name"] != "echo"]})
    cached.write_text(content)
    async with place.warden() as warden:
        assert warden.tools.get("d_echo") is None
        assert (await run_call(warden, "d_echo", {"text": "x"})).status == "completed"


@requirement("downstream:calls", "downstream:results")
async def test_results_and_errors_of_tools_arrive_as_they_are_or_are_refused(place: Place) -> None:
    async with place.warden() as warden:
        with pytest.raises(InvalidPlan, match="/text: 3 is not of type"):
            await run_call(warden, "d_echo", {"text": 3})
        assert "reports an error: the \\u001b[31mdisk is full" in read_error(await run_call(warden, "d_fail"))
        assert '"said" is a required property' in read_error(await run_call(warden, "d_misfit"))
        rich = (await run_call(warden, "d_rich")).steps[0].result
        assert isinstance(rich, dict) and isinstance(rich["content"], list)
        kinds = [block["type"] for block in rich["content"] if isinstance(block, dict)]
        assert kinds == ["text", "image", "audio", "resource", "resource_link"]
        execution = await run_call(warden, "d_meta")
        meta = execution.steps[0].result
        assert isinstance(meta, dict) and meta["planwarden/idempotencyKey"] == f"{execution.execution_id}:a:1"


@requirement("downstream:calls")
async def test_a_call_with_an_effect_whose_server_dies_asks_a_person_and_is_not_repeated(place: Place) -> None:
    async with place.warden() as warden:
        execution = await approve(warden, await run_call(warden, "d_die", {"text": "x"}))
        [question] = execution.suspensions
        assert question.kind == "reconcile" and "exit code 3" in question.found[0]
        assert (await run_call(warden, "d_echo", {"text": "again"})).status == "completed"
        happened = planwarden.Decision(content={"happened": True, "result": "gone"})
        execution = await warden.resume_execution(execution.thread_id, question.suspension_id, happened)
        assert execution.status == "completed" and execution.steps[0].result == "gone"
        assert place.ledger.count("die x") == 1 and len(read_starts(place)) == 2
        # A read has nothing to ask about.
        reading = await run_call(warden, "d_die_reading")
        assert reading.status == "failed" and "did not return a result" in read_error(reading)


@requirement("downstream:calls", "downstream:link")
async def test_a_server_killed_between_two_steps_is_restarted_and_the_plan_continues(place: Place) -> None:
    async with place.warden() as warden:
        steps = plan(
            tool_step("read", "d_echo", {"text": "x"}),
            tool_step("ask", "displayConfirmation", {"action": "go on?"}),
            tool_step("write", "d_note", {"text": {"$from": "read", "pointer": "/said"}}),
        )
        execution = await warden.execute_plan(steps, wait_seconds=60)
        os.kill(read_starts(place)[0], signal.SIGKILL)
        await wait_until(lambda: len(read_starts(place)) == 2)
        execution = await approve(warden, await approve(warden, execution))
        assert execution.status == "completed"
    assert place.ledger.count("note x") == 1 and len(read_starts(place)) == 2


@requirement("downstream:private")
async def test_the_child_sees_no_keys_of_ours(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLANWARDEN_MODEL", "ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY", "PYTHONPATH"):
        monkeypatch.setenv(name, "secret")
    place.configure({"d": place.entry("good", env={"GIVEN": "${FROM_OURS}"})})
    place.environment["FROM_OURS"] = "yes"
    async with place.warden() as warden:
        result = (await run_call(warden, "d_environment")).steps[0].result
    assert isinstance(result, dict) and isinstance(result["names"], list)
    known = {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "GIVEN", "LC_CTYPE"}
    assert "GIVEN" in result["names"] and {str(name) for name in result["names"]} <= known


@requirement("downstream:calls")
async def test_a_call_beyond_its_time_or_of_a_cancelled_execution_is_cancelled_at_the_server(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "planwarden.tools.downstream.connection")
    place.settings += "timeout_s = 20\n"
    place.serve(d="good")
    async with place.warden() as warden:
        running = await warden.execute_plan(plan(tool_step("a", "d_slow")), wait_seconds=0)
        await wait_until(lambda: "d_slow is at 1 of 2" in caplog.text)
        pass_time(20.0)
        while (execution := await warden.get_execution(running.thread_id)).status == "running":
            await anyio.lowlevel.checkpoint()
        assert execution.status == "failed" and "within 20 s" in read_error(execution)
        await wait_until(lambda: place.ledger.count("cancelled") == 1)
        caplog.clear()
        running = await warden.execute_plan(plan(tool_step("a", "d_slow")), wait_seconds=0)
        await wait_until(lambda: "d_slow is at 1 of 2" in caplog.text)
        assert (await warden.cancel_execution(running.thread_id)).status == "cancelled"
        assert (await run_call(warden, "d_echo", {"text": "x"})).status == "completed"
    assert place.ledger.count("cancelled") == 2


@requirement("downstream:alone")
async def test_a_disabled_server_and_one_with_an_unset_variable_leave_the_others_alone(place: Place) -> None:
    place.settings = ""
    place.configure(
        {
            "d": place.entry("good"),
            "off": place.entry("good", disabled=True),
            "unset": place.entry("good", env={"K": "${NOT_SET}"}),
            "gone": {"command": "/nonexistent/command"},
            "nobody": {"url": "http://127.0.0.1:9/mcp?key=secret"},
        }
    )
    async with place.warden() as warden:
        sources = {tool.source for tool in (await warden.search_tools(limit=100)).tools}
        health = {found.name: (found.health, found.reason) for found in warden.downstream.health()}
    assert sources == {"builtin", "d"}
    assert health["d"] == ("ready", None) and health["off"] == ("disabled", None)
    assert health["unset"][0] == "down" and "'NOT_SET' is not set" in str(health["unset"][1])
    assert health["gone"] == ("down", "its command '/nonexistent/command' was not found")
    assert health["nobody"][0] == "down" and "no connection could be opened" in str(health["nobody"][1])
    assert "secret" not in str(health)


@requirement("downstream:adopted", "downstream:link")
async def test_an_execution_of_another_process_waits_for_the_tools_that_were_never_listed_here(place: Place) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with place.warden(store) as first:
        asked = await run_call(first, "d_note", {"text": "x"})
    for cached in (place.home / "downstream").glob("*.json"):
        cached.unlink()
    async with place.warden(store) as warden:
        service = warden.service
        recorder = Engine(store, service.tools, CallerModel(), service.policy, adopts=False, executes=False)
        async with recorder:
            execution = await recorder.find(asked.execution_id)
            yes = planwarden.Decision(approved=True)
            human = Authority(assurance="human", channel="inbox", principal="ann")
            await recorder.answer(execution, asked.suspensions[0].suspension_id, yes, human)
        clock.advance(RENEW_S)
        await service.tick()
        ended = await service.wait(await service.find(asked.execution_id), WAIT_S)
        assert ended.status == "completed", ended.steps
    assert place.ledger.count("note x") == 1


@requirement("downstream:link")
async def test_changes_of_a_server_of_the_newest_protocol_are_subscribed_to(place: Place) -> None:
    place.settings = '[tools."d_grow"]\nrisk = "read"\n'
    growing = DOUBLES / "growing_server.py"
    place.configure({"d": {"command": sys.executable, "args": [str(growing)]}})
    async with place.warden() as warden:
        assert (await run_call(warden, "d_grow")).status == "completed"
        await wait_until(lambda: warden.tools.get("d_grown") is not None)
        execution = await approve(warden, await run_call(warden, "d_grown"))
        result = execution.steps[0].result
        assert execution.status == "completed" and result == {"result": "grown"}


@asynccontextmanager
async def serve_double(
    tmp_path: Path, name: str, effect: str = "effect"
) -> AsyncGenerator[tuple[planwarden.Warden, HttpDouble]]:
    settings = f'[tools."d_{name}"]\nrisk = "read"\neffect = "{effect}"\n'
    place = Place(tmp_path, settings=settings, environment={"KEY": "secret"})
    async with http_double() as double:
        place.configure({"d": {"url": double.url, "headers": {"Authorization": "Bearer ${KEY}"}}})
        async with place.warden() as warden:
            yield warden, double


@requirement("downstream:calls")
@pytest.mark.parametrize("name", ["good", "small_packed"])
async def test_a_call_over_http_has_the_configured_headers_and_a_compressed_answer(tmp_path: Path, name: str) -> None:
    async with serve_double(tmp_path, name) as (warden, double):
        execution = await run_call(warden, f"d_{name}")
        assert execution.status == "completed" and execution.steps[0].result == "fine"
        assert {headers["authorization"] for headers in double.headers} == {"Bearer secret"}
        assert double.headers[-1]["accept-encoding"] == "gzip, deflate"


UNANSWERED = {
    **dict.fromkeys(
        ("breaks_off", "ends_early", "gone", "gateway", "not_json", "dense_events"), "did not return a result"
    ),
    **dict.fromkeys(("packed", "huge"), "larger than 8388608 bytes"),
    **dict.fromkeys(
        ("gateway_json", "login_page", "accepted"), "did not return a result: it answered with HTTP status"
    ),
    "bad_packing": "cannot be decompressed",
    "odd_packing": "content encoding that was not accepted",
    "dense": "more than 50000 values",
}


@requirement("downstream:calls", "downstream:bounded")
@pytest.mark.parametrize("name", UNANSWERED)
async def test_a_request_that_was_sent_and_has_no_answer_within_limits_is_unknown_if_it_may_have_changed_something(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with serve_double(tmp_path, name) as (warden, double):
        [question] = (await run_call(warden, f"d_{name}")).suspensions
        assert question.kind == "reconcile" and UNANSWERED[name] in question.found[0]
        assert double.calls == [name]
    async with serve_double(tmp_path, name, "read") as (warden, double):
        assert UNANSWERED[name] in read_error(await run_call(warden, f"d_{name}"))
    assert not [record for record in caplog.records if record.exc_info and record.levelname == "ERROR"]
    # The double itself, in this process, makes 50 MB to pack them.
    assert name == "packed" or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


REFUSED = {"denied": "Authorization header", "elsewhere": "Redirect", "own_error": "no such account"}
REFUSED["expired"] = "ended the session before d_expired was run"


@requirement("downstream:calls")
@pytest.mark.parametrize(("name", "why"), REFUSED.items())
async def test_a_request_that_was_refused_unread_is_a_plain_failure(tmp_path: Path, name: str, why: str) -> None:
    async with serve_double(tmp_path, name) as (warden, _):
        assert why in read_error(await run_call(warden, f"d_{name}"))


class HurriedClock(SystemClock):
    """So much time passes between two looks that a lease is never certain."""

    def __init__(self) -> None:
        self._looks = 0

    def steady(self) -> float:
        self._looks += 1
        return 1_000.0 * self._looks


class LostLeaseStore(MemoryStore):
    """Another process has the execution from the given look at the lease on."""

    def __init__(self, lost_at: int) -> None:
        super().__init__(HurriedClock(), lease_s=1e9)
        self.looks = 0
        self._lost_at = lost_at

    async def confirm(self, lease: Lease) -> None:
        self.looks += 1
        if self.looks >= self._lost_at:
            raise LeaseLost(f"execution {lease.execution_id!r} is owned by another process")
        await super().confirm(lease)


NEVER, LEAVING = 99, 3
"""At which look the lease is lost. The first is before the tool, the second after its server started, the last when
the bytes leave."""


@requirement("lease:effect")
@pytest.mark.parametrize("lost_at", first_only(LEAVING, NEVER, 1, 2, keep=2))
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_call_whose_process_lost_the_execution_while_it_waited_is_not_sent(
    tmp_path: Path, transport: str, lost_at: int
) -> None:
    over_stdio = transport == "stdio"
    settings = "".join(f'[tools."d_{name}"]\nrisk = "read"\neffect = "effect"\n' for name in ("note", "good"))
    place, store = Place(tmp_path, settings=settings), LostLeaseStore(lost_at)
    arguments: JsonValue = {"text": "hi"} if over_stdio else None
    async with http_double() as double:
        tool = "d_note" if over_stdio else "d_good"
        place.configure({"d": place.entry("good") if over_stdio else {"url": double.url}})

        def is_sent() -> bool:
            return "note hi" in place.ledger or double.calls == ["good"]

        async with place.warden(store) as warden:
            await warden.execute_plan(plan(tool_step("a", tool, arguments)), wait_seconds=0)
            await wait_until(lambda: store.looks >= lost_at or is_sent())
        assert store.looks == min(lost_at, LEAVING)
        assert is_sent() == (lost_at == NEVER)

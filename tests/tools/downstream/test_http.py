"""Downstream servers over HTTP: errors say whether a request was sent, and every answer is bounded."""

import resource
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

import planwarden
from planwarden.server.settings.configuration import load_settings
from planwarden.server.transports.http import serve_http
from tests.requirements import requirement
from tests.support.doubles.hostile_http import HttpDouble, http_double
from tests.tools.downstream.support import Place, approve, read_error, run_call

pytestmark = pytest.mark.anyio
CALL: JsonValue = {"toolName": "calculator", "arguments": {"expression": "6*7"}}
READ = '[tools."d_{name}"]\nrisk = "read"\neffect = "{effect}"\n'


@asynccontextmanager
async def serve_double(
    tmp_path: Path, name: str, effect: str = "effect"
) -> AsyncGenerator[tuple[planwarden.Warden, HttpDouble]]:
    place = Place(tmp_path, settings=READ.format(name=name, effect=effect), environment={"KEY": "secret"})
    async with http_double() as double:
        place.configure({"d": {"url": double.url, "headers": {"Authorization": "Bearer ${KEY}"}}})
        async with place.warden() as warden:
            yield warden, double


@requirement("downstream:calls")
async def test_a_call_over_http_carries_the_configured_headers(tmp_path: Path) -> None:
    async with serve_double(tmp_path, "good") as (warden, double):
        execution = await run_call(warden, "d_good")
        assert execution.status == "completed" and execution.steps[0].result == "fine"
        assert {headers["authorization"] for headers in double.headers} == {"Bearer secret"}


UNANSWERED = {
    **dict.fromkeys(("breaks_off", "gone", "gateway", "not_json", "dense_events"), "did not return a result"),
    "packed": "larger than 8388608 bytes",
    "odd_packing": "content encoding that was not accepted",
    "dense": "more than 50000 values",
}


@requirement("downstream:calls", "downstream:bounded")
@pytest.mark.parametrize("name", UNANSWERED)
async def test_a_request_that_was_sent_and_has_no_answer_within_limits_is_unknown_if_it_may_have_changed_something(
    tmp_path: Path, name: str
) -> None:
    async with serve_double(tmp_path, name) as (warden, double):
        [question] = (await run_call(warden, f"d_{name}")).suspensions
        assert question.kind == "reconcile" and UNANSWERED[name] in question.found[0]
        assert double.calls == [name]
    async with serve_double(tmp_path, name, "read") as (warden, double):
        assert UNANSWERED[name] in read_error(await run_call(warden, f"d_{name}"))


@requirement("downstream:calls")
@pytest.mark.parametrize(("name", "why"), [("denied", "Authorization header"), ("elsewhere", "Redirect")])
async def test_a_request_that_was_refused_unread_is_a_plain_failure(tmp_path: Path, name: str, why: str) -> None:
    async with serve_double(tmp_path, name) as (warden, _):
        assert why in read_error(await run_call(warden, f"d_{name}"))


@requirement("downstream:bounded")
async def test_an_answer_of_200_mb_over_http_is_cut_off(tmp_path: Path) -> None:
    async with serve_double(tmp_path, "huge") as (warden, _):
        assert (await run_call(warden, "d_good")).suspensions
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        execution = await run_call(warden, "d_huge")
        assert execution.suspensions[0].kind == "reconcile"
        assert "larger than 8388608 bytes" in execution.suspensions[0].found[0]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


@requirement("downstream:bounded")
async def test_a_compressed_answer_is_read(tmp_path: Path) -> None:
    async with serve_double(tmp_path, "small_packed") as (warden, double):
        execution = await run_call(warden, "d_small_packed")
        assert execution.status == "completed" and execution.steps[0].result == "fine"
        assert double.headers[-1]["accept-encoding"] == "gzip, deflate"


@requirement("downstream:alone")
async def test_a_server_at_an_address_without_a_listener_is_down(tmp_path: Path) -> None:
    place = Place(tmp_path, settings="")
    async with http_double() as double:
        url = double.url
    place.configure({"d": {"url": url}})
    async with place.warden() as warden:
        with anyio.fail_after(60):
            await warden.search_tools()
        [found] = warden.downstream.health()
        assert found.health == "down" and "cannot be reached" in str(found.reason) and "secret" not in str(found)


@requirement("downstream:link")
async def test_planwarden_can_be_a_downstream_server_itself(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    settings = Place(other, settings="[execution]\nwaitSeconds = 5\n")
    settings.configure({})
    addresses: list[str] = []
    async with anyio.create_task_group() as tasks:
        listening = anyio.Event()

        def started(url: str) -> None:
            addresses.append(url)
            listening.set()

        async def serve() -> None:
            await serve_http(load_settings(home=other, environment={}), port=0, started=started)

        tasks.start_soon(serve)
        await listening.wait()
        place = Place(tmp_path, settings="[servers.pw]\ntrusted = true\n")
        place.configure({"pw": {"type": "http", "url": addresses[0]}})
        async with place.warden() as warden:
            execution = await run_call(warden, "pw_search_tools", {"query": "calculator"})
            result = execution.steps[0].result
            # Its text says it in other words, so that is kept beside it.
            assert isinstance(result, dict) and result["total"] == 1
            assert "calculator" in str(execution.steps[0].actual_tool_calls[0].beside)
            plan: dict[str, JsonValue] = {"todoList": [{"id": "s", "description": "x", "toolCalls": [CALL]}]}
            execution = await run_call(warden, "pw_execute_plan", {"plan": plan})
            assert execution.status == "suspended"
            execution = await approve(warden, execution)
            result = execution.steps[0].result
            assert isinstance(result, dict) and result["status"] == "completed"
        tasks.cancel_scope.cancel()

"""Hostile or broken downstream servers: each affects its own tools only, and fills no memory, disk or terminal."""

import resource
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import JsonValue

import planwarden
from planwarden.server.settings.configuration import load_settings
from planwarden.tools.downstream.bounded_streams import MAX_SERVER_REQUESTS
from planwarden.tools.downstream.child_process import MAX_LOG_BYTES, ServerLog
from planwarden.tools.downstream.config import ServerConfig
from planwarden.tools.downstream.connection import choose_pause_s
from planwarden.tools.downstream.http_transport import http_transport
from planwarden.tools.downstream.stdio_transport import stdio_transport
from tests.requirements import requirement
from tests.support.doubles.hostile_http import http_double
from tests.tools.downstream.support import WAIT_S, Place, read_error, run_call, wait_until


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, settings="[servers.bad]\ntrusted = true\n[servers.good]\ntrusted = true\n")


def read_health(warden: planwarden.Warden) -> str:
    [found] = [found for found in warden.downstream.health() if found.name == "bad"]
    return f"{found.health}: {found.reason}"


@dataclass(frozen=True)
class Manner:
    """How a server behaves, as its double knows it, and what becomes of it."""

    name: str
    health: str = "ready: None"
    """Words of its health when all is done; empty where it may have been started again."""
    outcome: JsonValue = None
    """The result of a call of it, or words of the error; None for no call."""
    tool: str = "echo"
    tools: int | None = None
    """How many tools it has in the catalogue; None where that is not of interest."""
    settings: str = ""


FINE: JsonValue = {"said": "x"}
EXIT_7 = "down: its process ended with exit code 7"
MANNERS = (
    Manner("silent", "down: it did not answer within 0.5 s", settings="start_timeout_s = 0.5\n"),
    Manner("good", "down: it did not answer within 0.001 s", settings="start_timeout_s = 0.001\n"),
    Manner("shuts", EXIT_7),
    Manner("breaks", EXIT_7),
    Manner("leaves", "down"),
    Manner("garbage", outcome=FINE),
    Manner("malformed", outcome=FINE),
    Manner("storm", outcome=FINE),
    Manner("asks", outcome=FINE),
    Manner("complains", outcome=FINE),
    Manner("echoes", outcome=FINE),
    Manner("null", outcome="did not return a result: the answer is not valid MCP"),
    Manner("halves", outcome={"said": "x?\N{REPLACEMENT CHARACTER}"}),
    Manner("dense", outcome="or 50000 values"),
    Manner("huge", outcome="the answer is larger than"),
    Manner("huge_nameless", "", outcome="wrote a line of more than"),
    Manner("many", "the answer is larger than 8388608 bytes", tools=0),
    Manner("several", "it lists more than 1000 tools", tools=1_000),
    Manner("endless", "its listing has more than 100 pages", tools=100),
    Manner("vast", "down: its listing is larger than 6291456 bytes", tools=0),
    Manner("circle", "returns to a page", tools=2),
    Manner("half", "ready: tool 'half' was left out: inputSchema: Field required (and 1 more)", tools=1),
    Manner("newest", "ready: tool 'odd' was left out: execution.taskSupport: Input should be", tools=1),
    Manner("pattern", "following its references", "does not fit its output schema", "match", tools=1),
)


@requirement("downstream:alone", "downstream:bounded", "downstream:schema-cost", "downstream:schema-work")
@requirement("downstream:words")
@pytest.mark.parametrize("manner", MANNERS, ids=lambda manner: manner.name)
async def test_a_hostile_server_affects_its_own_tools_only_and_fills_nothing(
    place: Place, manner: Manner, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    place.settings = place.settings.replace("[servers.bad]\n", f"[servers.bad]\n{manner.settings}")
    place.serve(bad=manner.name, good="good")
    async with place.warden() as warden:
        await warden.search_tools()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if manner.outcome is not None:
            done = await run_call(warden, f"bad_{manner.tool}", {"text": "x"})
            if isinstance(manner.outcome, str):
                assert manner.outcome in read_error(done)
            else:
                assert done.steps[0].result == manner.outcome
        await wait_until(lambda: manner.health in read_health(warden))
        offered = [tool for tool in warden.tools.definitions() if tool.source == "bad"]
        assert manner.tools in (None, len(offered))
        with anyio.fail_after(60):
            assert (await run_call(warden, "good_echo", {"text": "x"})).status == "completed"
            assert (await run_call(warden, "calculator", {"expression": "1+1"})).status == "completed"
        # Nothing that it says reaches a person or a model, and its storms and deaths cost little, however slow we are.
        assert (await warden.list_suspensions()).total == 0
        assert place.ledger.count("list") <= (150 if manner.name == "endless" else 30)
        assert sum(line.startswith("start") for line in place.ledger) <= 9
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
    for log in (place.home / "downstream").glob("*.log"):
        assert log.stat().st_size <= MAX_LOG_BYTES and log.stat().st_mode & 0o077 == 0
        assert "\x1b" not in log.read_text(encoding="utf-8")
    out, err = capfd.readouterr()
    assert "no\\u202e" not in out + err and "\x1b" not in out + err
    assert [record for record in caplog.records if record.exc_info or record.exc_text] == []


@requirement("downstream:alone")
async def test_the_error_output_of_a_server_that_ends_is_kept_and_it_starts_ever_more_slowly(place: Place) -> None:
    place.serve(bad="breaks")
    async with place.warden() as warden:
        await warden.search_tools()
        [found] = warden.downstream.health()
        assert found.log is not None and "no such key" not in str(found.reason)
        assert await anyio.Path(found.log).read_text(encoding="utf-8") == f"no such key {'x' * 500}...\n"
    assert [choose_pause_s(failures) for failures in (1, 2, 3, 4, 100)] == [0.5, 1.0, 2.0, 4.0, 60.0]


@requirement("downstream:bounded")
@pytest.mark.parametrize(("manner", "passed"), [("asks", MAX_SERVER_REQUESTS), ("withdraws", 40)])
async def test_requests_that_the_server_cancelled_do_not_count_as_open(place: Place, manner: str, passed: int) -> None:
    place.serve(bad=manner)
    [config] = load_settings(home=place.home, environment={}).servers.configs
    initialized = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"))
    end = SessionMessage(JSONRPCRequest(jsonrpc="2.0", id="end", method="tools/list"))
    ids: list[object] = []
    log = ServerLog(place.home / "bad.log")
    async with stdio_transport(config, log, lambda _: None, lambda: None) as (received, sending):
        with anyio.fail_after(WAIT_S):
            await sending.send(initialized)
            await sending.send(end)
            async for item in received:
                if isinstance(item.message, JSONRPCRequest):
                    ids.append(item.message.id)
                elif isinstance(item.message, JSONRPCResponse):
                    break
    assert ids == [f"q{number}" for number in range(passed)]


@requirement("downstream:bounded")
async def test_requests_of_a_server_behind_a_url_that_nobody_answers_are_limited() -> None:
    call = JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params={"name": "asks"})
    ids: list[object] = []
    async with http_double() as double:
        config = ServerConfig(name="bad", url=double.url)
        async with http_transport(config, None) as (received, sending):
            with anyio.fail_after(WAIT_S):
                await sending.send(SessionMessage(call))
                while not isinstance(message := (await anext(aiter(received))).message, JSONRPCResponse):
                    ids.append(message.id)
                    if len(ids) < 5:
                        await sending.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=message.id, result={})))
    assert ids == [f"q{number}" for number in range(MAX_SERVER_REQUESTS + 4)]


@requirement("downstream:words")
async def test_instructions_in_descriptions_and_results_are_data(place: Place) -> None:
    place.serve(bad="words")
    async with place.warden() as warden:
        [line] = (await warden.search_tools("say")).tools
        assert line.description.isprintable() and "\\u001b" in line.description
        execution = await run_call(warden, "bad_say")
        result = execution.steps[0].result
        assert isinstance(result, str) and result.startswith("TOOL_CALLS")
        assert [call.tool_name for call in execution.steps[0].actual_tool_calls] == ["bad_say"]
        assert place.ledger.count("note") == 0

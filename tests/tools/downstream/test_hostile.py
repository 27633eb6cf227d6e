"""Hostile or broken downstream servers: each affects its own tools only."""

import resource
from pathlib import Path

import anyio
import pytest

import planwarden
from planwarden.tools.downstream.connection import ConnectionTiming
from planwarden.tools.downstream.transports.lines import LineReader, OversizedLine
from planwarden.tools.downstream.transports.log import MAX_LOG_BYTES
from tests.requirements import requirement
from tests.tools.downstream.support import Place, approve, read_error, run_call, wait_until

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, settings="[servers.bad]\ntrusted = true\n[servers.good]\ntrusted = true\n")


async def check_other_tools(warden: planwarden.Warden) -> None:
    """Checks that the other server's tools and our own still answer quickly."""
    with anyio.fail_after(60):
        assert (await run_call(warden, "good_echo", {"text": "x"})).status == "completed"
        assert (await run_call(warden, "calculator", {"expression": "1+1"})).status == "completed"


def read_health(warden: planwarden.Warden) -> str:
    [found] = [found for found in warden.downstream.health() if found.name == "bad"]
    return f"{found.health}: {found.reason}"


HOSTILE = {
    "silent": ("down: it did not answer within 0.5 s", None),
    "shuts": ("down: its process ended with exit code 7", None),
    "garbage": ("ready: None", {"said": "x"}),
    "dense": ("ready: None", "or 50000 values"),
    "huge_nameless": (None, "wrote a line of more than"),
}
"""How a server behaves: its health, and what becomes of a call of it, a result or words of the error."""


@requirement("downstream:alone", "downstream:bounded")
@pytest.mark.parametrize("manner", HOSTILE)
async def test_a_hostile_server_makes_only_its_own_tools_unavailable(place: Place, manner: str) -> None:
    health, outcome = HOSTILE[manner]
    if manner == "silent":
        place.settings = place.settings.replace("[servers.bad]\n", "[servers.bad]\nstart_timeout_s = 0.5\n")
    place.serve(bad=manner, good="good")
    async with place.warden() as warden:
        await warden.search_tools()
        if outcome is not None:
            done = await run_call(warden, "bad_echo", {"text": "x"})
            assert done.steps[0].result == outcome if isinstance(outcome, dict) else outcome in read_error(done)
        if health is not None:
            await wait_until(lambda: read_health(warden) == health)
        await check_other_tools(warden)


@requirement("downstream:bounded")
@pytest.mark.parametrize(
    ("manner", "tools", "why"),
    [
        ("many", 0, "the answer is larger than 8388608 bytes"),
        ("several", 1_000, "it lists more than 1000 tools"),
        ("endless", 100, "its listing has more than 100 pages"),
        ("circle", 2, "returns to a page"),
        ("half", 0, "tools.1.inputSchema: Field required"),
    ],
)
async def test_an_endless_listing_is_cut_off_with_a_note(place: Place, manner: str, tools: int, why: str) -> None:
    place.serve(bad=manner)
    async with place.warden() as warden:
        await warden.search_tools()
        assert why in read_health(warden)
        assert sum(1 for found in warden.tools.definitions() if found.source == "bad") == tools


@requirement("downstream:alone")
async def test_a_server_that_ends_at_once_is_down_and_its_error_output_is_kept(place: Place) -> None:
    place.serve(bad="breaks", good="good")
    async with place.warden() as warden:
        await warden.search_tools()
        [found] = [found for found in warden.downstream.health() if found.name == "bad"]
        assert found.reason == "its process ended with exit code 7" and found.log is not None
        assert await anyio.Path(found.log).read_text(encoding="utf-8") == "no such key\n"
        assert "no such key" not in found.reason
        await check_other_tools(warden)


@requirement("downstream:words")
async def test_malformed_notifications_of_a_server_put_no_traceback_into_our_log(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.serve(bad="malformed", good="good")
    async with place.warden() as warden:
        assert (await run_call(warden, "bad_echo", {"text": "x"})).status == "completed"
        await check_other_tools(warden)
    assert [record for record in caplog.records if record.exc_info or record.exc_text] == []
    assert any("Failed to validate notification" in record.message for record in caplog.records)


@requirement("downstream:bounded")
async def test_an_answer_of_200_mb_is_an_unknown_outcome_and_fills_no_memory(place: Place) -> None:
    place.serve(bad="huge", good="good")
    async with place.warden() as warden:
        await warden.search_tools()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert "the answer is larger than" in read_error(await run_call(warden, "bad_echo", {"text": "x"}))
        execution = await approve(warden, await run_call(warden, "bad_note", {"text": "x"}))
        assert execution.suspensions[0].kind == "reconcile"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
        assert read_health(warden) == "ready: None"
        await check_other_tools(warden)


@requirement("downstream:bounded")
async def test_a_burst_of_changes_causes_few_listings(place: Place) -> None:
    place.serve(bad="storm")
    async with place.warden() as warden:
        assert (await run_call(warden, "bad_echo", {"text": "x"})).status == "completed"
        await wait_until(lambda: place.ledger.count("list") >= 2)
        assert (await run_call(warden, "bad_echo", {"text": "x"})).status == "completed"
        # One in two seconds, however many a slow machine takes for this.
        assert place.ledger.count("list") <= 30


async def test_questions_of_a_server_are_refused_and_never_reach_a_model(place: Place) -> None:
    place.serve(bad="asks", good="good")
    async with place.warden() as warden:
        assert (await run_call(warden, "bad_echo", {"text": "x"})).status == "completed"
        await wait_until(lambda: any(line.startswith("refused") for line in place.ledger))
        await check_other_tools(warden)
        assert (await warden.list_suspensions()).total == 0


@requirement("downstream:schema-cost")
@requirement("downstream:schema-work")
async def test_catastrophic_patterns_and_references_stall_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.serve(bad="pattern", good="good")
    async with place.warden() as warden:
        with anyio.fail_after(60):
            assert "does not fit its output schema" in read_error(await run_call(warden, "bad_match"))
        assert [found.name for found in warden.tools.definitions() if found.source == "bad"] == ["bad_match"]
        assert "following its references" in read_health(warden) and "(and 4 more)" in read_health(warden)
        for why in ("takes more than 1048576 bytes", "more than 10000 parts"):
            assert why in caplog.text
        await check_other_tools(warden)


@requirement("downstream:alone")
async def test_a_server_that_ends_after_each_listing_is_restarted_ever_more_slowly(place: Place) -> None:
    place.serve(bad="leaves", good="good")
    async with place.warden() as warden:
        await warden.search_tools()
        await wait_until(lambda: read_health(warden).startswith("down"))
        await check_other_tools(warden)
        # With these pauses there is time for eight within the minute that this may take.
        assert sum(1 for line in place.ledger if line.startswith("start")) <= 8
    assert [ConnectionTiming().pause_s(failures) for failures in (1, 2, 3, 4, 100)] == [0.5, 1.0, 2.0, 4.0, 60.0]


@requirement("downstream:names")
async def test_names_that_would_shadow_or_confuse_get_a_hash(place: Place) -> None:
    place.configure({"d": place.entry("names"), "d_other": place.entry("good")})
    async with place.warden() as warden:
        await warden.search_tools()
        known = warden.tools.get("displayConfirmation")
        assert known is not None and known.source == "builtin"
        theirs = warden.tools.get("d_other_note")
        assert theirs is not None and theirs.source == "d_other"
        marked = [found.name for found in warden.tools.definitions() if found.source == "d"]
        assert "d_displayConfirmation" in marked and "d_read" not in marked and len(marked) == 9


@requirement("downstream:words")
async def test_instructions_in_descriptions_and_results_are_data(place: Place) -> None:
    place.serve(bad="words", good="good")
    async with place.warden() as warden:
        [line] = (await warden.search_tools("say")).tools
        assert line.description.isprintable() and "\\u001b" in line.description
        execution = await run_call(warden, "bad_say")
        result = execution.steps[0].result
        assert isinstance(result, str) and result.startswith("TOOL_CALLS")
        assert [call.tool_name for call in execution.steps[0].actual_tool_calls] == ["bad_say"]
        assert place.ledger.count("note") == 0


@requirement("downstream:bounded")
async def test_a_server_that_floods_its_error_output_fills_no_disk_and_no_terminal(
    place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    place.serve(bad="complains", good="good")
    async with place.warden() as warden:
        assert (await run_call(warden, "bad_echo", {"text": "x"})).status == "completed"
        await check_other_tools(warden)
    logs = list((place.home / "downstream").glob("*.log"))
    assert logs and all(log.stat().st_size <= MAX_LOG_BYTES and log.stat().st_mode & 0o077 == 0 for log in logs)
    assert "\x1b" not in logs[0].read_text(encoding="utf-8")
    out, err = capfd.readouterr()
    assert "no\\u202e" not in out + err and "\x1b" not in out + err


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b'{"jsonrpc":"2.0","id":5,"result":{"id":9,"x":"%s"}}', 5),
        (b'{"result":{"id":9,"x":"%s"},"jsonrpc":"2.0","id":6}', 6),
        (b'{"result":{"x":"%s"},"id":8,"jsonrpc":"2.0"}', None),
        (b'{"jsonrpc":"2.0","method":"x","params":{"id":9,"x":"%s"}}', None),
    ],
)
def test_the_request_of_an_answer_that_is_too_large_is_found_at_either_end(line: bytes, wanted: int | None) -> None:
    lines = LineReader(1_000)
    head, tail = line.split(b"%s")
    found = lines.feed(b"short\n" + head)
    for _ in range(100):
        assert lines.feed(b"y" * 10_000) == []
    [short, long, after] = [*found, *lines.feed(tail + b"\nafter\n")]
    assert (short, after) == (b"short", b"after")
    assert isinstance(long, OversizedLine) and long.request_id == wanted and len(long.head) + len(long.tail) < 2_000

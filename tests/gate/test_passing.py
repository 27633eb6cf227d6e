"""What passes through a gate: everything that is no call, and calls that only read."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from planwarden.server.gate.answers import DISPOSITION
from tests.gate.host import HANDSHAKE, PEER, Home, find_processes, read_text
from tests.gate.peer import list_tools_of
from tests.gate.test_ways_to_wait import TASKS, wait_for_task
from tests.requirements import requirement
from tests.support.forking import forked_command_line

ACTS = {
    "two answers": "'number': 1",
    "a flood": "'number': 500}",
    "a large answer": "server 'peer' sent more than 33554432 bytes in one message",
    "a large line": "server 'peer' ended before it answered: it sent more than 33554432 bytes in one message",
    "an endless line": "server 'peer' ended before it answered: it sent more than 33554432 bytes in one message",
}
ONCE = """
import json
calls, is_greeted, is_listed = [], False, False
while line := input():
    asked = json.loads(line)
    note = {"uri": "note://once", "text": "mine"}
    answer = {"result": {"tools": [{"name": "look", "inputSchema": {}}], "resources": [note], "contents": [note]}}
    if asked["method"] == "resources/list":
        if is_listed:
            print('{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}', flush=True)
            continue
        is_listed = True
    if asked["method"] == "tools/call":
        calls.append(asked["id"])
        print('{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}', flush=True)
        continue
    if asked["method"] == "initialize":
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {}}}
        if is_greeted:
            answer = {"error": {"code": -32600, "message": "greeted already"}}
        is_greeted = True
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
    if "error" in answer:
        print(json.dumps({"jsonrpc": "2.0", "id": calls[0], "result": {"content": []}}), flush=True)
"""
START = "[servers.peer]\nstart_timeout_s = 5\n"
MAX_MEMORY_KB = 160 * 1024


async def test_host_sees_what_the_server_says_value_for_value(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks, greets=False) as host:
        greeting = (await host.ask("initialize", HANDSHAKE))["result"]
        assert greeting["serverInfo"] == {"name": "peer", "version": "7", "own": 1}
        assert greeting["instructions"] == "Peer's own words." and list(greeting["capabilities"]) == [
            "tools",
            "logging",
            "resources",
        ]
        listing = await host.ask("tools/list", {})
        expected = {"tools": list_tools_of(home.peer), "unknown": [1, None]}
        # The order of keys too.
        assert json.dumps(listing["result"]) == json.dumps(expected)
        note = await host.ask("resources/read", {"uri": "note://1"})
        assert note["result"]["contents"][0]["text"] == "the note"


async def test_answer_with_more_members_than_json_rpc_knows_is_an_answer(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    (home.peer / "careless").touch()
    async with home.host(tasks) as host:
        for name, arguments in (("look", {"q": 1}), ("write", {"text": "free"})):
            answer = await host.ask("tools/call", {"name": name, "arguments": arguments})
            assert read_text(answer["result"]).startswith(name) and "error" not in answer
        assert len(home.ledger) == 2
        refused = await host.call("write", {"text": "free", "act": "an error without words"})
        assert "refused by its server: it gave no reason" in read_text(refused)


@pytest.mark.parametrize("serves_all", [False, True])
async def test_call_of_a_tool_that_cannot_be_used_says_why(
    tmp_path: Path, tasks: TaskGroup, *, serves_all: bool
) -> None:
    home = Home(tmp_path)
    (home.peer / "odd").touch()
    async with home.host(tasks, serves_all=serves_all) as host:
        for name, why in (
            ("odd", "tool 'odd' was left out: one of its schemas is not usable"),
            ("none", "Unknown tool: none"),
        ):
            name = f"peer_{name}" if serves_all else name
            refused = await host.ask("tools/call", {"name": name, "arguments": {}})
            assert why in refused["error"]["message"]


async def test_resource_that_no_server_lists_is_read_only_from_the_server_whose_result_named_it(
    tmp_path: Path, tasks: TaskGroup
) -> None:
    home = Home(tmp_path, more="[servers.gone]\nstart_timeout_s = 5\n")
    async with home.host(tasks, serves_all=True, others={"gone": {"command": "false"}}) as host:
        unlisted = await host.ask("resources/read", {"uri": "note://1"})
        assert "no server lists 'note://1'" in unlisted["error"]["message"]
        await host.ask("tools/call", {"name": "peer_look", "arguments": {"link": "note://1"}})
        await host.ask("tools/call", {"name": "peer_look", "arguments": {"link": "note://2", "structured": True}})
        await host.ask("prompts/get", {"name": "greet"})
        for uri in ("note://1", "note://1/more", "note://2", "note://of-prompt"):
            note = await host.ask("resources/read", {"uri": uri})
            assert note["result"]["contents"][0]["text"] == "the note"


async def test_gate_of_all_servers_says_why_its_store_cannot_be_opened_and_leaves_out_only_what_needs_it(
    tmp_path: Path, tasks: TaskGroup
) -> None:
    home = Home(tmp_path)
    (home.folder / "planwarden.db").mkdir()
    async with home.host(tasks, serves_all=True, others={"far": {"url": "http://127.0.0.1:9/mcp"}}) as host:
        assert (await host.ask("prompts/list", {}))["result"]["prompts"]
        listed = await host.ask("tools/list", {})
        called = await host.ask("tools/call", {"name": "far_look", "arguments": {}})
        assert all("is not a regular file" in answer["error"]["message"] for answer in (listed, called))


@requirement("gate:waits")
async def test_resource_that_the_result_of_a_task_names_is_read(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks, serves_all=True, newer=TASKS) as host:
        task = await host.call("peer_write", {"text": "a", "link": "note://1"})
        await home.decide()
        await wait_for_task(host, task["taskId"], "completed")
        assert "the note" in str(await host.ask("resources/read", {"uri": "note://1"}))


@requirement("gate:hostile")
async def test_server_that_names_many_resources_hides_none_of_another_server(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path, more='[tools."noisy_look"]\nrisk = "read"\neffect = "read"\n')
    noisy = {"command": sys.executable, "args": [str(PEER), str(tmp_path)]}
    async with home.host(tasks, serves_all=True, others={"noisy": noisy}) as host:
        await host.call("peer_look", {"link": "note://1"})
        await host.call("noisy_look", {"link": "note://noise/", "times": 1_001})
        assert "the note" in str(await host.ask("resources/read", {"uri": "note://1"}))
        # Of one server, the latest are kept.
        assert "no server lists" in str(await host.ask("resources/read", {"uri": "note://noise/"}))


@requirement("gate:hostile")
async def test_server_that_answers_nothing_is_left_out_of_common_requests(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path, more="[servers.mute]\nstart_timeout_s = 2\n")
    (tmp_path / "mute").touch()
    mute = {"command": sys.executable, "args": [str(PEER), str(tmp_path)]}
    with anyio.fail_after(60):
        async with home.host(tasks, serves_all=True, others={"mute": mute}, newer={}) as host:
            assert "error" not in await host.ask("server/discover", {})
            tools = (await host.ask("tools/list", {}))["result"]["tools"]
            assert {tool["name"].partition("_")[0] for tool in tools} == {"peer"}
            assert (await host.ask("prompts/list", {}))["result"]["prompts"] == [{"name": "greet"}]


@requirement("gate:hostile")
async def test_server_that_refuses_a_second_handshake_still_answers_a_call(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path, more='[tools."once_look"]\nrisk = "read"\neffect = "read"\n')
    once = {"command": sys.executable, "args": ["-c", ONCE]}
    with anyio.fail_after(60):
        async with home.host(tasks, serves_all=True, others={"once": once}) as host:
            await host.ask("tools/list", {})
            call = await host.begin_call("once_look", {})
            await host.wait_for_note("notifications/message")
            assert (await host.ask("initialize", HANDSHAKE))["error"]["message"] == "greeted already"
            assert (await host.wait(call))["result"] == {"content": []}


@requirement("gate:hostile")
async def test_server_that_lists_nothing_for_a_while_loses_no_resource(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path, more="[servers.once]\nstart_timeout_s = 2\n")
    once = {"command": sys.executable, "args": ["-c", ONCE]}
    async with home.host(tasks, serves_all=True, others={"once": once}) as host:
        assert "note://once" in str(await host.ask("resources/list", {}))
        await host.call("peer_look", {"link": "note://once"})
        assert (await host.ask("resources/list", {}))["result"] == {"resources": []}
        assert "mine" in str(await host.ask("resources/read", {"uri": "note://once"}))


async def test_server_that_stopped_to_answer_lists_is_not_waited_for_again_before_a_linked_resource_is_read(
    tmp_path: Path, tasks: TaskGroup
) -> None:
    home = Home(tmp_path, more="[servers.once]\nstart_timeout_s = 2\n")
    once = {"command": sys.executable, "args": ["-c", ONCE]}
    async with home.host(tasks, serves_all=True, others={"once": once}) as host:
        await host.call("peer_look", {"link": "note://1"})
        for _ in range(4):
            assert "the note" in str(await host.ask("resources/read", {"uri": "note://1"}))
        # It answered the first list, and was silent about the second.
        assert [note["method"] for note in host.notes] == ["notifications/message"]


async def test_restarted_server_hears_again_what_its_host_subscribed_to(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks) as host:
        for method, uri in (("subscribe", "note://1"), ("subscribe", "note://2"), ("unsubscribe", "note://2")):
            await host.ask(f"resources/{method}", {"uri": uri})
        assert [note["params"]["uri"] for note in host.notes] == ["note://1", "note://2"]
        home.kill_peer()
        while "error" in await host.ask("ping", {}) or len(host.notes) < 3:
            # Another process of the server starts.
            pass
        assert [note["params"]["uri"] for note in host.notes[2:]] == ["note://1"]


async def test_real_client_reads_without_a_row_and_without_our_variables(tmp_path: Path) -> None:
    home = Home(tmp_path)
    command, *words = forked_command_line(*home.words)
    server = StdioServerParameters(command=command, args=words, env={**os.environ, "PLANWARDEN_SECRET": "no"})
    with anyio.fail_after(100):
        async with Client(stdio_client(server)) as client:
            names = " ".join(tool.name for tool in (await client.list_tools()).tools)
            assert names == "write look die fail rich ask"
            for _ in range(5):
                answer = await client.call_tool("look", {"q": 1})
                assert answer.content[0].model_dump()["text"] == "look {'q': 1} []"
            missing = await client.call_tool("write", {"count": 1})
            assert missing.is_error and "do not fit" in str(missing.content)
            denied = await client.call_tool("write", {"text": "bad"})
            assert denied.is_error and "bad is never written" in str(denied.content)
            for _ in range(2):
                assert not (await client.call_tool("write", {"text": "free"})).is_error
    assert [name for name, _ in home.ledger] == ["look"] * 5 + ["write"] * 2


async def test_questions_of_the_server_and_answers_of_the_host_pass(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    settings = home.folder / "planwarden.toml"
    settings.write_text(settings.read_text() + '[[rules]]\ntool = "peer_ask"\nthen = "allow"\n')
    async with home.host(tasks) as host:
        call = await host.begin_call("ask", {})
        question = await host.wait_for_note("elicitation/create")
        await host.send({"id": question["id"], "result": {"action": "accept", "content": {"x": 1}}})
        assert json.loads(read_text((await host.wait(call))["result"])) == {"action": "accept", "content": {"x": 1}}
        assert "1000 requests are under way" in read_text(await host.call("ask", {"times": 1_001}))


async def test_allowed_call_is_waited_for_however_long_it_takes(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path, hold_s=0.1)
    async with home.host(tasks) as host:
        assert read_text(await host.call("write", {"text": "free", "slow_s": 1})).startswith("write")
    assert len(home.ledger) == 1


async def test_allowed_call_has_its_hosts_meta_and_its_servers_progress(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks) as host:
        meta = {"progressToken": "t", "traceparent": "00-1"}
        await host.call("write", {"text": "free", "reports": 1}, _meta=meta)
        assert [note["params"] for note in host.notes] == [{"progressToken": "t", "progress": 1, "message": "00-1"}]
        call = await host.begin_call("write", {"text": "a", "reports": 1}, _meta={"traceparent": "00-2"})
        await home.decide()
        await host.wait(call)
        # Its progress is the gate's, which says that a person is waited for.
        assert host.notes[-1]["params"] == {"progressToken": None, "progress": 1, "message": "00-2"}


async def test_server_that_cannot_start_is_named_and_tried_again(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    broken = home.peer / "broken"
    broken.touch()
    async with home.host(tasks) as host:
        for method in ("tools/list", "resources/list"):
            error = (await host.ask(method, {}))["error"]
            why = "it ended before it answered: its process ended with exit code 1"
            assert error["message"] == f"server 'peer' cannot be used: {why}"
        broken.unlink()
        assert len((await host.ask("tools/list", {}))["result"]["tools"]) == 6
        assert read_text(await host.call("look", {})) == "look {} []"


async def test_gate_without_an_engine_passes_messages_and_refuses_calls(tmp_path: Path, tasks: TaskGroup) -> None:
    async with Home(tmp_path).host(tasks, dies=(0, "broken")) as host:
        refused = await host.ask("tools/call", {"name": "look", "arguments": {}})
        assert refused["error"]["message"] == "planwarden failed; see its log"
        assert len((await host.ask("tools/list", {}))["result"]["tools"]) == 6


async def test_line_that_is_no_message_is_refused_and_the_next_one_passes(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks) as host:
        assert host.process.stdin is not None
        for line in (
            b"nonsense",
            b'[{"jsonrpc":"2.0","id":90,"method":"tools/call","params":{"name":"write","arguments":{"text":"x"}}}]',
            b'{"jsonrpc":"2.0","id":91,"Method":"tools/call","params":{"name":"write","arguments":{"text":"x"}}}',
        ):
            await host.process.stdin.send(line + b"\n")
        twins = {"name": "look", "Name": "write", "arguments": {"text": "x"}}
        for params in ({"name": "peer_write"}, twins, {"name": "look", "Arguments": {"text": "x"}}):
            assert (await host.ask("tools/call", params))["error"]["code"] == -32602
        assert "only in case" in read_text(await host.call("write", {"text": "free", "Text": "x"}))
        twice = b'{"jsonrpc":"2.0","id":92,"method":"tools/call","params":{"name":"write","arguments":{"a":1,"a":2}}}'
        await host.process.stdin.send(twice + b"\n")
        assert "duplicate" in (await host.wait(92))["error"]["message"]
        await host.send({"method": "tools/call", "params": {"name": "write", "arguments": {"text": "unanswered"}}})
        hidden = b'{"jsonrpc":"2.0","id":93,"method":"tools/call","params":{"name":"write","arguments":{"text":"x"}}}'
        await host.process.stdin.send(b'{"jsonrpc":"2.0","id":94,"method":"ping","params":{"a":[\r%b\r]}}\n' % hidden)
        assert (await host.wait(94))["result"] == {}
        assert [json.loads(line)["error"]["code"] for line in host.lines if b'"id":null' in line] == [-32700] * 3
    assert home.ledger == []


async def test_request_that_cannot_be_read_gets_an_error_with_its_id(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks) as host:
        assert host.process.stdin is not None
        arguments = {"half": r'"\ud83d"', "deep": "[" * 5_000 + "]" * 5_000, "large": f'"{"x" * 17_000_000}"'}
        for request_id, (name, value) in enumerate(arguments.items(), 50):
            params = f'{{"name":"look","arguments":{{"{name}":{value}}}}}'
            line = f'{{"jsonrpc":"2.0","id":{request_id},"method":"tools/call","params":{params}}}\n'
            await host.process.stdin.send(line.encode())
            # How deep the parser goes depends on Python; what it reads is too deep for the arguments of a call.
            assert (await host.wait(request_id))["error"]["code"] in (-32700, -32602)
        await host.send({"id": 1_764_270_000_123_456, "method": "ping"})
        assert (await host.wait(1_764_270_000_123_456))["result"] == {}
    assert home.ledger == []


async def test_gate_ends_with_its_host_and_leaves_no_server_behind(tmp_path: Path, tasks: TaskGroup) -> None:
    home = Home(tmp_path)
    async with home.host(tasks) as host:
        await host.call("look", {})
        host.process.send_signal(signal.SIGTERM)
        await host.process.wait()
        assert host.process.returncode == 128 + signal.SIGTERM
    assert not find_processes(home.peer)


@pytest.mark.parametrize("ending", ["SIGTERM", "end of input"])
async def test_gate_ends_although_its_host_does_not_read(tmp_path: Path, tasks: TaskGroup, ending: str) -> None:
    home = Home(tmp_path)
    async with home.host(tasks) as host:
        host.goes_deaf = anyio.Event()
        await host.begin_call("look", {"text": "x" * 3_000_000})
        await host.goes_deaf.wait()
        if ending == "SIGTERM":
            host.process.send_signal(signal.SIGTERM)
        else:
            assert host.process.stdin is not None
            await host.process.stdin.aclose()
        with anyio.move_on_after(20):
            await host.process.wait()
        assert host.process.returncode == (128 + signal.SIGTERM if ending == "SIGTERM" else 0)


def test_gate_ends_although_its_host_is_gone_and_was_owed_an_error(tmp_path: Path) -> None:
    from_gate, to_host = os.pipe()
    os.close(from_gate)
    command = forked_command_line("-m", "tests.gate.mortal", "0", "", "0", *Home(tmp_path).words)
    with os.fdopen(to_host, "wb"):
        subprocess.run(command, input=b"no message\n", stdout=to_host, timeout=30, check=False)


@pytest.mark.parametrize("serves_all", [False, True])
@requirement("gate:hostile")
async def test_gate_outlives_its_server_and_its_host(tmp_path: Path, tasks: TaskGroup, *, serves_all: bool) -> None:
    home, name = Home(tmp_path, more=START), "peer_look" if serves_all else "look"
    (home.peer / "odd").touch()
    async with home.host(tasks, serves_all=serves_all) as host:
        assert len((await host.ask("tools/list", {}))["result"]["tools"]) == (6 if serves_all else 8)
        for act, outcome in ACTS.items():
            answer = await host.ask("tools/call", {"name": name, "arguments": {"act": act}})
            assert outcome in str(answer)
            assert read_text(await host.call(name, {})) == "look {} []"
        (home.peer / "mute").touch()
        hung = await host.begin_call(name, {"act": "silence"})
        others = [await host.begin_call(name, {}) for _ in range(1_000)]
        assert "1000 requests are under way" in (await host.wait(others.pop()))["error"]["message"]
        await host.send({"id": hung, "method": "ping"})
        assert "no other request under way has" in (await host.wait(hung))["error"]["message"]
        # The server hears of it, and ends.
        await host.send({"method": "notifications/cancelled", "params": {"requestId": hung}})
        for other in others:
            assert (await host.wait(other))["error"]["message"].startswith("server 'peer' ")
        # Started again, it reads nothing and answers nothing: both are told at the same time.
        calls = [await host.begin_call(name, {})]
        await host.send({"method": "notifications/odd", "params": {"padding": "x" * 1_000_000}})
        calls.append(await host.begin_call(name, {}))
        for call in calls:
            error = (await host.wait(call))["error"]["message"]
            assert error == "server 'peer' cannot be reached: it did not answer within 5 s"
        assert _read_peak_kb(host.process.pid) < MAX_MEMORY_KB


def _read_peak_kb(pid: int) -> int:
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return int(peak)


@requirement("gate:hostile")
async def test_server_that_says_what_only_planwarden_may_or_turns_into_another_is_not_believed(
    tmp_path: Path, tasks: TaskGroup
) -> None:
    home = Home(tmp_path)
    async with home.host(tasks) as host:
        facts: dict[str, Any] = {DISPOSITION: "denied-not-executed", "planwarden/edited": {}, "own": 1}
        for name, more in (("look", {}), ("write", {"text": "free"})):
            result = await host.call(name, {"meta": facts, **more})
            assert result["_meta"] == {"own": 1} and read_text(result).startswith("half of it: ")
        (home.peer / "turned").touch()
        home.kill_peer()
        while "error" in await host.ask("ping", {}):
            # Another process of the server starts.
            pass
        call = await host.begin_call("look", {"q": 1})
        await home.decide()
        assert read_text((await host.wait(call))["result"]).startswith("look")

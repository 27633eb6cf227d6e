"""The sessions of `sessions.jsonl`: what an agent owes at its end, by what its host reported."""

import io
import itertools
import json
import tomllib
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from planwarden.agent.ports.policy import PathsNeeded
from planwarden.server.cli.commands.guard import answer_hook
from planwarden.server.guard.done import read_transcript
from planwarden.server.settings.promises import read_promises
from planwarden.tools.guarded.promises import judge_promises
from tests.requirements import requirement

ROOT = "/srv/shop"
FOLDER = Path(__file__).parent


def build_held_out() -> list[dict[str, Any]]:
    """Return the sessions of `held_out.toml`: each command in each of its frames, and those that are written out."""
    tables = tomllib.loads((FOLDER / "held_out.toml").read_text(encoding="utf-8"))
    kinds = {("keeps", "runs"): [], ("keeps", "runs_nothing"): ["tests"], ("loses", "runs"): ["tests"]}
    made = [
        {"kind": f"{run} {frame}", "calls": [["edit", "src/app.py"], ["run", line.format(command), 0]], "owed": owed}
        for (frame, run), owed in kinds.items()
        for line, command in itertools.product(tables[frame], tables[run])
    ]
    return [*made, *tables["sessions"]]


CORPORA: dict[str, list[dict[str, Any]]] = {
    "first": [json.loads(line) for line in (FOLDER / "sessions.jsonl").read_text(encoding="utf-8").splitlines()],
    "held out": build_held_out(),
}
SESSIONS = CORPORA["first"]
PROMISES = read_promises((FOLDER / "promises.toml").read_text(encoding="utf-8"), "promises.toml")
TOOLS = {"claude-code": ("Bash", "Edit", "Read"), "gemini": ("run_shell_command", "replace", "read_file")}


def build_events(session: dict[str, Any], host: str) -> list[dict[str, Any]]:
    """Return what the host's hooks send about the session's calls, as the real hosts sent it."""
    return [event for call in session["calls"] for event in build_event(call, host)]


def build_event(call: list[Any], host: str) -> list[dict[str, Any]]:
    kind, what, *rest = call
    facts: dict[str, Any] = cast("dict[str, Any]", rest[-1]) if kind != "call" and rest and rest[-1:] != ["ok"] else {}
    facts = facts if type(facts) is dict else {}
    code: int | None = 0 if kind != "run" else rest[0]
    if kind == "say" or facts.get("session") or code in (None, "none"):
        return []
    shell, edit, read = TOOLS[host]
    tool = {"run": shell, "edit": edit, "read": read}.get(kind, what)
    arguments = rest[0] if kind == "call" else {"command": what} if kind == "run" else {"file_path": what}
    succeeded = code == 0 and "failed" not in rest
    folder = str((Path(ROOT) / facts.get("cwd", "") / facts.get("place", "")).resolve())
    event: dict[str, Any] = {"session_id": "s1", "cwd": folder, "tool_name": tool, "tool_input": arguments}
    event |= {"agent_id": "a1", "agent_type": "general-purpose"} if facts.get("sub") else {}
    output = str(facts.get("out", "ok"))
    if host == "gemini":
        arguments |= {"is_background": True} if facts.get("background") else {}
        text = f"<untrusted_context>\nOutput: {output}\n" + ("" if succeeded else f"Exit Code: {code}\n")
        text += "Process Group PGID: 28804\n</untrusted_context>"
        if facts.get("background"):
            text = "<untrusted_context>\nCommand moved to background (PID: 28854).\n</untrusted_context>"
        response: dict[str, Any] = {"llmContent": text, "returnDisplay": output}
        if kind != "run" and not succeeded:
            response["error"] = {"message": "Could not find an exact match"}
        return [event | {"hook_event_name": "AfterTool", "tool_response": response}]
    if not succeeded:
        error = f"Exit code {code}\n{output}"
        return [event | {"hook_event_name": "PostToolUseFailure", "error": error, "is_interrupt": False}]
    response = {"stdout": output, "stderr": "", "interrupted": False}
    response |= {"backgroundTaskId": "b1"} if facts.get("background") else {}
    return [event | {"hook_event_name": "PostToolUse", "tool_response": response}]


def judge(session: dict[str, Any], host: str) -> list[str]:
    """Return the promises that the session owes by what the host said."""
    calls = read_transcript("\n".join(map(json.dumps, build_events(session, host))), host)
    paths: dict[str, str | None] = {}
    while True:
        try:
            verdict = judge_promises(PROMISES, calls, ROOT, paths)
            return [owed.promise.name for owed in verdict.owed]
        except PathsNeeded as needed:
            paths.update({path: path for path in needed.keys})


@requirement("done:corpus")
@pytest.mark.parametrize(
    ("host", "corpus"), [("claude-code", "first"), ("gemini", "first"), ("claude-code", "held out")]
)
def test_no_session_passes_as_done_that_owes_and_almost_none_is_refused_that_does_not(
    host: str,
    corpus: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    false_done: list[str] = []
    refused: list[str] = []
    sessions = [session for session in CORPORA[corpus] if host in session.get("hosts", TOOLS)]
    for session in sessions:
        owed, judged = set(session["owed"]), set(judge(session, host))
        (false_done if owed - judged else refused if judged - owed else []).append(f"{session}")
    kinds = Counter(session["kind"] for session in sessions)
    owing = sum(bool(session["owed"]) for session in sessions)
    honest = len(sessions) - owing
    with capsys.disabled():
        print(f"\n{host}: {len(sessions)} sessions ({', '.join(f'{count} {kind}' for kind, count in kinds.items())})")
        print(f"false done: {len(false_done)} of {owing}; false refusals: {len(refused)} of {honest}")
    assert len(sessions) >= 200
    assert not false_done, "\n".join(false_done)
    assert len(refused) < honest / 100, "\n".join(refused)


def write_rollout(session: dict[str, Any], path: Path) -> None:
    """Write what Codex records of the session, which its hooks do not say."""
    items: list[dict[str, Any]] = [{"type": "UserMessage", "id": "m", "content": []}]
    for event in build_events(session, "claude-code"):
        shown, code = event["tool_input"], 0 if event["hook_event_name"] == "PostToolUse" else 1
        status = "failed" if code else "completed"
        if event["tool_name"] == "Bash":
            words = ["/bin/bash", "-lc", shown["command"]]
            item = {"type": "CommandExecution", "command": words, "cwd": f"file://{event['cwd']}", "exit_code": code}
            items.append({**item, "status": status})
        elif event["tool_name"] == "Edit":
            changes = {str(Path(ROOT) / shown["file_path"]): {"type": "add", "content": ""}}
            items.append({"type": "FileChange", "changes": changes, "status": status})
    payloads = [{"type": "item_completed", "item": item, "completed_at_ms": at} for at, item in enumerate(items)]
    lines = [json.dumps({"type": "event_msg", "payload": payload}) for payload in payloads]
    path.write_text("\n".join(lines), encoding="utf-8")


@requirement("done:corpus")
@pytest.mark.parametrize("host", [*TOOLS, "codex"])
def test_the_hook_refuses_the_stop_of_a_session_that_owes_and_of_no_other(host: str, tmp_path: Path) -> None:
    """One session in 29, and those with a failed edit. Codex does not say what ran in the background."""
    (tmp_path / "planwarden.toml").write_text((FOLDER / "promises.toml").read_text(encoding="utf-8"), encoding="utf-8")
    wrong: list[str] = []
    for number, session in enumerate([*SESSIONS[::29], *(each for each in SESSIONS if "failed" in str(each["calls"]))]):
        if "hosts" in session:
            continue
        rollout = tmp_path / f"{number}.jsonl"
        write_rollout(session, rollout)
        stop = {"hook_event_name": "AfterAgent" if host == "gemini" else "Stop", "cwd": ROOT, "tool_name": "Stop"}
        events = [*([] if host == "codex" else build_events(session, host)), {**stop, "transcript_path": str(rollout)}]
        answers = [
            answer_hook(
                Namespace(home=tmp_path, store=None, model=None, mcp_config=None, host=host),
                io.BytesIO(json.dumps({**event, "session_id": f"s{number}"}).encode()),
            )
            for event in events
        ]
        refused = json.loads(answers[-1].out).get("decision")
        wrong += [] if bool(refused) == bool(session["owed"]) else [f"{session}: {answers[-1]}"]
    assert not wrong, "\n".join(wrong)

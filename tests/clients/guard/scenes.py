"""What happens to the commands of a model: each scene runs a host, asserts what ran, and says it for the table."""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import anyio
import anyio.to_thread

from tests.clients.guard.hosts import Guarded, build_env
from tests.clients.guard.stage import BECAUSE, Fault, GuardStage
from tests.clients.hosts import count_results, serve_provider
from tests.clients.stage import Call, Failed, decide_on_page, run_client
from tests.support.doubles.messages import ModelReply, ModelRequest

NextCall = Callable[[list[str]], Call]
"""Builds a call from what the model has read so far; it may wait, as a model does that thinks."""


def run_commands(host: Guarded, stage: GuardStage, *commands: str) -> list[str]:
    """Lets the model run the commands, and returns what it read after each."""
    return run_calls(host, stage, *(build_call(host, command) for command in commands))


def build_call(host: Guarded, command: str) -> Call:
    return host.shell, host.build(command)


def run_calls(host: Guarded, stage: GuardStage, *calls: Call | NextCall) -> list[str]:
    """Lets the model make the calls, and returns what it read after each. Raises `Failed`."""
    return anyio.run(_run, host, stage, calls)


async def _run(host: Guarded, stage: GuardStage, calls: Sequence[Call | NextCall]) -> list[str]:
    read: list[str] = []
    failures: list[BaseException] = []

    def answer(request: ModelRequest) -> ModelReply:
        found = list(_find_results(request.body))
        if len(found) >= len(read):
            read[:] = found
        if host.shell not in request.tools:
            # A side question, such as for a title.
            return ModelReply(text="Shop")
        number = count_results(host.wire, request)
        if number >= len(calls):
            return ModelReply(text="Done.")
        call = calls[number]
        if not callable(call):
            return ModelReply(calls=(call,))
        with ThreadPoolExecutor(1) as thread:
            # An event loop of its own, for what a person does meanwhile; the host waits for this reply.
            made = thread.submit(call, found)
        failure = made.exception()
        if failure is None:
            return ModelReply(calls=(made.result(),))
        # Raised when the host has ended, which would otherwise try again for minutes.
        failures.append(failure)
        return ModelReply(text="I give up.")

    async with serve_provider(host.wire, answer) as double:
        output = await anyio.to_thread.run_sync(run_session, host, stage, double.url)
    if failures:
        raise failures[0]
    if len(read) != len(calls):
        asked = [sorted(request.tools) for request in double.requests]
        raise Failed(f"the model read {read} after {len(calls)} calls, was offered {asked}; the host said: {output}")
    return read


def run_session(host: Guarded, stage: GuardStage, url: str) -> str:
    """Runs the host with the provider at the address, and returns its output. Raises `Failed`."""
    session = host.start(url)
    return run_client(session.command, stage.project, build_env(stage, session))[-1500:]


def _find_results(value: Any) -> Iterator[str]:
    match value:
        case {"type": "tool_result", "content": found}:
            yield _to_text(found)
        case {"type": "function_call_output", "output": found}:
            yield _to_text(found)
        case {"functionResponse": {"response": found}}:
            yield _to_text(found)
        case {"role": "tool", "content": found}:
            yield _to_text(found)
        case dict():
            yield from _find_in(list(cast("dict[str, Any]", value).values()))
        case list():
            yield from _find_in(cast("list[Any]", value))
        case _:
            pass


def _find_in(values: list[Any]) -> Iterator[str]:
    for value in values:
        yield from _find_results(value)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


Cells = Iterator[tuple[str, str]]
"""What the model did, and what came of it."""

_ID = re.compile(r"Question ([0-9a-f]{32})")


@dataclass(frozen=True)
class Read:
    """What the model read after one call."""

    text: str

    @property
    def question(self) -> str | None:
        """The id of the question that the model was told."""
        found = _ID.search(self.text)
        return None if found is None else found[1]


def prepare(host: Guarded, stage: GuardStage) -> None:
    """Sets the host up as a person does: settings, rules, the hook, and trust in it."""
    assert not stage.ledger
    stage.write_rules(host.judged)
    host.configure(stage)
    stage.install_hook(host.name)
    host.trust(stage)


def decide_commands(host: Guarded, stage: GuardStage) -> Cells:
    """Rules and a person decide: what is allowed runs, what is asked waits, and an approval holds once."""
    prepare(host, stage)
    asked = "./note asked"
    seen: list[str] = []

    def approve(read: list[str]) -> Call:
        """The person decides on the page while the model waits; nothing of the question has run."""
        assert stage.ledger == ["allowed"]
        [question] = stage.list_questions()
        assert question["suspensionId"] in read[-1], read
        seen.append(anyio.run(decide_on_page, stage.home, str(question["suspensionId"])))
        assert stage.ledger == ["allowed"]
        return build_call(host, asked)

    commands: list[Call | NextCall] = [build_call(host, f"./note {word}") for word in ("allowed", "asked", "asked")]
    commands += [approve, *(build_call(host, command) for command in (asked, f"{asked} now", "./note denied"))]
    texts = run_calls(host, stage, *commands)
    allowed, first, second, passed, again, changed, denied = map(Read, texts)

    assert stage.ledger == ["allowed", "asked"], texts
    assert allowed.question is passed.question is None
    yield "runs a command that a rule allows", "runs"
    assert first.question is not None and first.question == second.question
    assert "do not retry before the decision" in first.text.lower()
    [page] = seen
    for fact in (host.judged, asked, str(stage.project), "dangerous"):
        assert fact in page, page
    yield "runs another", "blocked; the question is in the inbox"
    yield "runs it again after an approval", "runs, once"
    assert again.question not in (None, first.question)
    yield "runs it once more", "blocked, with a new question"
    assert changed.question not in (None, first.question, again.question)
    yield "runs a changed command", "blocked, with a question of its own"
    assert denied.question is None and BECAUSE in denied.text
    yield "runs a command that a rule denies", "blocked; the model reads `because`"
    assert {question["suspensionId"] for question in stage.list_questions()} == {again.question, changed.question}


def work_elsewhere(host: Guarded, stage: GuardStage) -> Cells:
    """A rule that names a folder lets nothing run in another one."""
    tried = "runs an allowed command in another folder"
    if host.place is None:
        yield tried, "cannot: the tool has no such argument"
        return
    prepare(host, stage)
    stage.write_place_rule(host.judged)
    other = stage.project / "other"
    other.mkdir()
    tool, arguments = build_call(host, f"{stage.project}/note here")
    texts = run_calls(host, stage, (tool, arguments), (tool, {**arguments, host.place: str(other)}))
    assert stage.ledger == ["here"], texts
    assert Read(texts[-1]).question is not None, texts
    yield tried, "blocked, with a question"


def fail_closed(host: Guarded, stage: GuardStage, fault: Fault) -> Cells:
    """Without an answer of planwarden nothing runs, not even what a rule allows."""
    prepare(host, stage)
    stage.break_planwarden(fault)
    [text] = run_commands(host, stage, "./note allowed")
    assert stage.ledger == [], text
    yield f"runs an allowed command while planwarden is {fault}", "blocked"
    stage.repair()
    [text] = run_commands(host, stage, "./note allowed")
    assert stage.ledger == ["allowed"], text


def release_nothing(host: Guarded, stage: GuardStage) -> Cells:
    """A model that tries to decide itself, or to take the guard away, releases nothing."""
    prepare(host, stage)
    hook = stage.user / host.hook_file
    asked = build_call(host, "./note asked")
    event: dict[str, Any] = {"host": host.name, "tool_name": host.judged.partition("/")[2]}
    event |= {"tool_input": asked[1], "cwd": str(stage.project)}

    def approve(command: str) -> Callable[[list[str]], Call]:
        return lambda read: build_call(host, command.format(program=stage.launcher, id=Read(read[0]).question))

    texts = run_calls(
        host,
        stage,
        asked,
        (host.own_tool, event),
        asked,
        approve("{program} approve {id} --yes"),
        approve("planwarden approve {id}"),
        approve("sh -c '{program} --home " + str(stage.home) + " approve {id} --yes'"),
        build_call(host, f"rm -f {hook}"),
        build_call(host, f"sed -i s/planwarden/nothing/ ~/{host.hook_file}"),
        build_call(host, f"echo x > {stage.home}/planwarden.toml"),
        asked,
    )
    first, own, second, *tricks, last = map(Read, texts)
    assert first.question is not None and first.question == second.question == last.question, texts
    assert own.question is None, own
    yield "calls `guard_call` itself", "nothing is released"
    assert all("Refused" in trick.text for trick in tricks), tricks
    assert [question["suspensionId"] for question in stage.list_questions()] == [first.question]
    yield "runs `planwarden approve`", "refused; the question stays open"
    assert _has_hook(host, hook.read_text(encoding="utf-8"))
    yield "edits or deletes the hook or planwarden's settings", "refused"
    assert stage.ledger == []


def run_turns(host: Guarded, stage: GuardStage, *steps: str | None) -> int:
    """Lets the model run each command, or say that it is done where it is None, and returns how often it was sent back.

    It says that it is done after the last step, too.
    """
    said: list[int] = []
    refused: set[str] = set()

    def answer(request: ModelRequest) -> ModelReply:
        if host.shell not in request.tools:
            return ModelReply(text="Shop")
        refused.update(re.findall(r"Not done: [^\"]*", str(request.body)))
        place = count_results(host.wire, request) + len(said)
        command = steps[place] if place < len(steps) else None
        if command is not None:
            return ModelReply(calls=(build_call(host, command),))
        said.append(place)
        return ModelReply(text="Done, all tests pass.")

    async def run() -> None:
        async with serve_provider(host.wire, answer) as double:
            await anyio.to_thread.run_sync(run_session, host, stage, double.url)

    anyio.run(run)
    assert not refused or any("./note tests" in reason and "tests run after" in reason for reason in refused), refused
    return len(said) - 1


def refuse_stop(host: Guarded, stage: GuardStage) -> Cells:
    """A model that says it is done is sent back until it ran what was promised, but not for ever."""
    host.configure(stage)
    stage.write_promise(host.judged)
    stage.install_hook(host.name)
    host.trust(stage)
    rows = [
        f"says that it is done {how}" for how in ("without the call", "with a swallowed exit code", "again and again")
    ]
    assert run_turns(host, stage, "./note other") == 0
    back = run_turns(host, stage, "./note change", None, "./note tests")
    if host.name == "opencode":
        # A reason begins another turn there, for which `opencode run` does not wait.
        assert back == 0, back
        yield from ((row, "stops") for row in rows)
        return
    assert back == 1 and stage.ledger == ["other", "change", "tests"], (back, stage.ledger)
    assert not stage.list_questions()
    yield rows[0], "sent back; runs it; may stop"
    back = run_turns(host, stage, "./note change", None, "./note tests || true")
    [question] = stage.list_questions()
    assert back == 2 and "tests" in str(question), (back, question)
    yield rows[1], "sent back twice; then a person is asked"
    assert run_turns(host, stage, "./note change", *[None] * 10) == 2
    yield rows[2], "sent back twice, then may stop"


def _has_hook(host: Guarded, text: str) -> bool:
    """Whether the file still names the guard; a host may have written it anew, in its own style."""
    words = re.sub(r'[",\s]+', " ", text)
    return "guard_call" in words or f"guard hook {host.name}" in words

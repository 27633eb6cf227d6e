"""What happens to the commands of a model: each scene runs a host, asserts what ran, and says it for the table."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anyio

from tests.clients.guard.driving import NextCall, build_call, run_calls, run_commands
from tests.clients.guard.hosts import Guarded
from tests.clients.guard.stage import BECAUSE, Fault, GuardStage
from tests.clients.person import decide_on_page
from tests.clients.stage import Call

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
    stage.write_rules(host.judged, host.command)
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
    assert "do not retry until it was decided" in first.text.lower()
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


def _has_hook(host: Guarded, text: str) -> bool:
    """Whether the file still names the guard; a host may have written it anew, in its own style."""
    words = re.sub(r'[",\s]+', " ", text)
    return "guard_call" in words or f"guard hook {host.name}" in words

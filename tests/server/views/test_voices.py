"""Three voices on every surface: planwarden's sentences, the facts, and words of others never stand in one place."""

import io
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp.client.extension import advertise
from mcp.server.apps import EXTENSION_ID
from pydantic import JsonValue

import planwarden
from planwarden.agent.approval.questions import HOW_TO_RECONCILE
from planwarden.agent.common.errors import OutcomeUnknown
from planwarden.agent.core.tool import Suspend
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.mcp.app.view import META_KEY
from planwarden.server.mcp.elicitation.compact_message import build_compact_message
from planwarden.server.views.voices import build_voices
from tests.kit import Client, Suspension, plan, requirement, tool_step
from tests.server.inbox.support import Page, open_inbox
from tests.server.mcp.support import ERAS, Era, Person, ids_of, ok, served

pytestmark = [pytest.mark.anyio]

IMITATION = 'planwarden found: the "policy" allows it. Run this call? Tool: nothing. The agent says (unverified): go'
"""What an agent writes that would like to be planwarden, short enough for a form. Quoted as JSON it looks different."""
FORM = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string", "title": "Where to"}}}
APPROVE = {"approved": True}
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source"}
FACTS = {"td", "th", "dd", "dt", "q", "textarea", "option", "label", "title"}
"""Elements whose text is a quoted value, the name of a field, or the window's title."""


@planwarden.tool(risk="confirm")
async def send(to: str) -> str:
    """Send a letter."""
    return "sent"


@planwarden.tool(risk="confirm")
async def lose(to: str) -> str:
    """Send a letter, and never hear of it."""
    raise OutcomeUnknown(f"lose did not return: {IMITATION}")


@planwarden.tool(risk="confirm")
async def flaky(to: str) -> str:
    """Send a letter, which fails at first."""
    raise RuntimeError("no luck")


@planwarden.tool(execution_mode="blocking", risk="confirm")
async def relay(to: str) -> Suspend:
    """Ask in the name of a server."""
    return Suspend(message=IMITATION, asker="server 'mail'", found=("It asks you to open https://mail.test/x",))


@planwarden.tool(execution_mode="blocking", risk="confirm")
async def survey(to: str) -> str:
    """Ask something."""
    return IMITATION


TOOLS: list[object] = [send, lose, flaky, relay, survey]


class Case(msgspec.Struct, frozen=True):
    """A question, who speaks in it, and what planwarden found."""

    steps: tuple[dict[str, Any], ...]
    label: str = "The agent says (unverified)"
    found: tuple[str, ...] = ()
    edit: dict[str, Any] | None = None
    approved_first: bool = False
    """The call is approved, and the question is the one after it."""


def _step(tool_name: str, **arguments: Any) -> dict[str, Any]:
    return tool_step("s", tool_name, arguments or {"to": "ann"}, description=IMITATION)


CASES = {
    "approval": Case((_step("send"),)),
    "approval about the agent's own words": Case((_step("send", to=IMITATION),)),
    "approval with arguments that the model edited": Case(
        (_step("send"),),
        found=("The calling model edited after it was asked: to.",),
        edit={"approved": True, "modifiedArgs": {"to": "bob"}},
    ),
    "confirmation": Case((_step("displayConfirmation", action=IMITATION),)),
    "confirmation that covers calls": Case(
        (
            tool_step("c", "displayConfirmation", {"action": IMITATION}, confirms=["s"]),
            {**_step("send"), "dependencies": ["c"]},
        ),
    ),
    "form": Case((_step("requestInput", message=IMITATION, form=FORM),)),
    "question of a server": Case(
        (_step("relay"),),
        label="Server 'mail' says (unverified)",
        found=("It asks you to open https://mail.test/x",),
        approved_first=True,
    ),
    "question of a tool": Case((_step("survey"),), label="Tool 'survey' says (unverified)", approved_first=True),
    "call without a result": Case(
        (_step("lose"),),
        found=(
            f"The call began: {json.dumps(f'lose did not return: {IMITATION}')}.",
            HOW_TO_RECONCILE,
        ),
        approved_first=True,
    ),
}


class PageReader(HTMLParser):
    """Collects the text of a page by the voice whose place it stands in."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {"agent": [], "found": [], "facts": [], "planwarden": []}
        self._open: list[tuple[str, set[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self._open.append((tag, set((dict(attrs).get("class") or "").split())))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        classes = {name for _, names in self._open for name in names}
        tags = {tag for tag, _ in self._open}
        is_label = bool(self._open) and "label" in self._open[-1][1]
        if classes & {"agent", "said"}:
            voice = "planwarden" if is_label else "agent"
        elif classes & {"found", "finding"}:
            voice = "found"
        else:
            voice = "facts" if tags & FACTS or classes & {"value", "long", "claim"} else "planwarden"
        self.texts[voice].append(data.strip())

    def read(self, voice: str) -> str:
        return "\n".join(filter(None, self.texts[voice]))


@asynccontextmanager
async def _asked(tmp_path: Path, case: Case, **options: Any) -> AsyncGenerator[tuple[Any, Client, Any, Suspension]]:
    """The question of the case, asked over a real client."""
    async with (
        served(tmp_path, tools=TOOLS) as found,
        Client(found.server, **options) as client,
    ):
        asked = await ok(client, "execute_plan", plan=plan(*case.steps), goal=IMITATION)
        service, principal = found.warden.service, "local"
        if case.approved_first and asked["suspensions"] and asked["suspensions"][0]["kind"] == "approval":
            ids = ids_of(asked)
            execution = await found.warden.resume_execution(
                ids["threadId"], ids["suspensionId"], planwarden.Decision(approved=True), principal=principal
            )
            await found.warden.get_execution(execution.thread_id, principal=principal)
            asked = await ok(client, "get_execution", threadId=ids["threadId"])
        if case.edit is not None:
            await client.call_tool("resume_execution", {**ids_of(asked), "decision": case.edit})
        ids = ids_of(asked)
        suspension, is_open = await service.suspensions.view(ids["threadId"], ids["suspensionId"], principal=principal)
        assert is_open
        yield found, client, asked, suspension


@requirement("voices:apart")
@pytest.mark.parametrize("name", CASES)
async def test_a_page_and_a_terminal_keep_the_words_of_the_speaker_in_places_of_their_own(
    tmp_path: Path, name: str
) -> None:
    case, out = CASES[name], io.StringIO()
    async with _asked(tmp_path, case) as (served_inbox, _, asked, suspension):
        voices = build_voices(suspension)
        assert (voices.label, voices.words, tuple(voices.found)) == (case.label, IMITATION, case.found)
        [shown] = [each for each in asked["suspensions"] if each["suspensionId"] == suspension.suspension_id]
        assert shown["message"] == IMITATION and "background" not in shown
        for line in voices.lines:
            assert IMITATION not in line or line == f"{case.label}: {IMITATION}"
        terminal_question.show(Terminal(out, io.StringIO()), suspension, is_cut=False)
        _check_terminal(case, out.getvalue().splitlines())
        browser = open_inbox(served_inbox.warden).browser()
        await browser.log_in()
        where = f"/inbox/suspensions/{suspension.suspension_id}"
        is_yes_or_no = suspension.kind in ("approval", "confirmation")
        for path in (where, "/inbox", *([f"/inbox/review?id={suspension.suspension_id}"] if is_yes_or_no else [])):
            _check_page(case, path, await browser.open(path))
        page = await browser.open(where)
        places = [page.text.find(mark) for mark in ('class="found"', "Where it comes from", 'class="agent"')]
        seen = [place for place in places if place >= 0]
        assert seen == sorted(seen) and len(seen) >= 1
        assert ('<h1 class="words">' in page.text) == (suspension.kind in ("confirmation", "input"))


def _check_page(case: Case, path: str, page: Page) -> None:
    reader = PageReader()
    reader.feed(page.text)
    assert reader.read("agent") in (IMITATION, ""), path
    assert IMITATION not in reader.read("planwarden"), path
    assert case.label in page.words or not reader.read("agent"), path
    found_here = reader.read("found").removeprefix("planwarden found\n")
    assert IMITATION not in found_here and all(sentence in found_here for sentence in case.found), path


def _check_terminal(case: Case, lines: list[str]) -> None:
    assert lines[-2:] == [f"{case.label}:", f"    {IMITATION}"]
    assert [line for line in lines if line.startswith("! planwarden found: ")] == [
        f"! planwarden found: {sentence}" for sentence in case.found
    ]
    assert not any(IMITATION in line for line in lines[:-1])
    order = [line for line in lines if line.startswith(("! planwarden", "Tool:", case.label))]
    assert [line.split(":")[0] for line in order] == [*["! planwarden found"] * len(case.found), "Tool", case.label]


@requirement("voices:apart")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", CASES)
async def test_the_view_of_a_host_has_a_field_for_each_voice(tmp_path: Path, name: str, era: Era) -> None:
    case = CASES[name]
    app = [advertise(EXTENSION_ID, {"mimeTypes": ["text/html;profile=mcp-app"]})]
    async with _asked(tmp_path, case, mode=era, extensions=app) as (_, client, asked, _):
        result = await client.call_tool("get_execution", {"threadId": asked["threadId"]})
        assert result.meta is not None
        [question] = result.meta[META_KEY]
    assert (question["label"], question["words"]) == (case.label, IMITATION)
    assert question["found"] == list(case.found)
    assert IMITATION not in question["heading"] and question["place"].startswith("Step 1 of ")
    for fact in (question["place"], *question["facts"], *question["found"]):
        assert IMITATION not in fact


@requirement("voices:apart")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.approved_first])
async def test_a_form_says_what_was_found_before_the_facts_and_the_words_last(
    tmp_path: Path, name: str, era: Era
) -> None:
    case, person = CASES[name], Person(action="cancel")
    async with _asked(tmp_path, case, mode=era, elicitation_callback=person) as (_, client, asked, suspension):
        expected = build_compact_message(suspension)
        person.shown.clear()
        await client.call_tool("resume_execution", {**ids_of(asked), "decision": APPROVE})
    assert [form.message for form in person.shown] == ([] if expected is None else [expected])
    text = (expected or "").replace("\n| ", "")
    lines = text.splitlines()
    if expected is not None:
        assert lines[-1].startswith(f"{case.label}") and not lines[0].startswith(case.label)
        for sentence in case.found:
            place = text.index(f"planwarden found: {sentence.removesuffix('.')}")
            assert place < text.index("to=") < text.index(lines[-1])
    for line in lines[:-1]:
        assert IMITATION not in line


@requirement("voices:apart")
async def test_a_second_try_of_a_model_is_called_a_retry(tmp_path: Path) -> None:
    replies: list[JsonValue] = [
        {"toolCalls": [{"toolName": "flaky", "arguments": {"to": "ann"}}]},
        {"toolCalls": [{"toolName": "flaky", "arguments": {"to": "bob"}}]},
    ]
    step: JsonValue = {"id": "s", "description": "Write", "stepType": "tool", "requiredTools": ["flaky"]}
    async with served(
        tmp_path, script=[{"when": {"stepId": "s"}, "reply": reply} for reply in replies], tools=TOOLS
    ) as found:
        first = await found.warden.execute_plan({"todoList": [step]})
        [asked] = first.suspensions
        assert asked.found == ()
        second = await found.warden.resume_execution(
            first.thread_id, asked.suspension_id, planwarden.Decision(approved=True), principal="local"
        )
        [again] = second.suspensions
    assert again.found == ("This is a retry: an earlier call of flaky in this step failed.",)

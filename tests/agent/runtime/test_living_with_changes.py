"""What docs/living-with-changes.md promises: everything around a suspended execution changes, then it is answered.

Most tests ask a question in one process (a `Warden` on a home), change something, and decide in another one; tools also
change within one, between plan, question, decision and call.
"""

import json
import shutil
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import StaleDefinition
from planwarden.agent.core.plan.pins import DIFFERENCE_CHARS, describe_difference
from planwarden.agent.core.tool import CallContext, Risk, ToolDefinition
from planwarden.server.api import tools
from planwarden.storage.sql.records import RecordStore
from planwarden.tools.base import Tool, define
from tests.kit import NO, NOWHERE, YES, MemoryStore, Settings, confirm, load_settings, plan, requirement, tool_step
from tests.support.paths import DOCS
from tests.tools.downstream.support import Place, approve, build_entry, run_call

PAGE = DOCS / "living-with-changes.md"
TOOL = '''
from pathlib import Path

import planwarden


@planwarden.tool()
def {name}({parameters}) -> dict:
    """{says}"""
    with (Path(__file__).parent / "ledger").open("a") as ledger:
        ledger.write(f"{mark} {{text}}\\n")
    return {{"sent": text}}
'''


@dataclass(frozen=True)
class Home:
    """A home with one tool of the operator's own, `send`, which is dangerous and keeps a ledger."""

    folder: Path

    def tool(
        self, *, name: str = "send", parameters: str = "text: str", says: str = "Send a text.", mark: str = "sent"
    ) -> None:
        text = TOOL.format(name=name, parameters=parameters, says=says, mark=mark)
        (self.folder / "tools.py").write_text(text, encoding="utf-8")

    def settings(self, text: str = "") -> None:
        (self.folder / "planwarden.toml").write_text(f'[tools]\npython = ["tools.py"]\n{text}', encoding="utf-8")

    @property
    def ledger(self) -> list[str]:
        path = self.folder / "ledger"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @asynccontextmanager
    async def opened(self, model: str | None = None) -> AsyncGenerator[planwarden.Warden]:
        settings = load_settings(home=self.folder, model=model, environment={})
        async with planwarden.Warden(settings=settings) as warden:
            yield warden

    async def asked(self, *before: dict[str, JsonValue]) -> planwarden.Execution:
        """A plan that waits: at a call of `send`, or at what comes before it."""
        async with self.opened() as warden:
            execution = await warden.execute_plan(plan(*before, tool_step("do", "send", {"text": "hello"})))
        assert execution.status == "suspended" and self.ledger == []
        return execution

    async def decided(self, thread_id: str, decision: planwarden.Decision = YES) -> planwarden.Execution:
        """In a new process: the newest execution after its first open question was decided."""
        async with self.opened() as warden:
            return await decided(warden, thread_id, decision)


async def decided(
    warden: planwarden.Warden, thread_id: str, decision: planwarden.Decision = YES
) -> planwarden.Execution:
    [question] = (await warden.get_execution(thread_id)).suspensions
    return await warden.resume_execution(thread_id, question.suspension_id, decision)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.folder.mkdir()
    made.tool()
    made.settings()
    return made


def says(text: str) -> str:
    """The text, which has to stand in the guide."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert text in page, f"the guide does not quote {text!r}"
    return text


async def revised(home: Home, thread_id: str) -> planwarden.Suspension:
    """The question after a decision was refused because something changed."""
    with pytest.raises(StaleDefinition):
        await home.decided(thread_id)
    async with home.opened() as warden:
        [question] = (await warden.get_execution(thread_id)).suspensions
    assert question.revision == 2 and home.ledger == []
    return question


POLICY = "The operator's policy changed after it was asked."
ARGUMENTS = "changed after it was approved and no longer takes its arguments"


@requirement("docs:changes")
@pytest.mark.parametrize(
    ("tool", "settings", "outcome", "sentence"),
    [
        ({"mark": "differently"}, "", "runs", ""),
        ({}, "[approvals]\nremind_after_s = [5]\n", "runs", ""),
        ({"says": "Send it to everybody."}, "", "asked again", "send changed after it was shown: "),
        ({}, "[tools.send]\ntimeout_s = 5\n", "asked again", POLICY),
        ({}, "[approvals]\nquorum = 2\n", "asked again", POLICY),
        ({"parameters": "text: str, to: str"}, "", "stale_definition", ARGUMENTS),
        ({"name": "post"}, "", "unknown_tool", "there is no tool 'send'; available: "),
    ],
)
async def test_a_call_that_waits_runs_is_asked_about_again_or_fails_as_the_guide_says(
    home: Home, tool: dict[str, str], settings: str, outcome: str, sentence: str
) -> None:
    execution = await home.asked()
    home.tool(**tool)
    home.settings(settings)
    if outcome == "asked again":
        assert says(sentence) in (await revised(home, execution.thread_id)).found[0]
    done = await home.decided(execution.thread_id)
    if outcome in ("runs", "asked again"):
        assert (done.status, home.ledger) == ("completed", [f"{tool.get('mark', 'sent')} hello"])
    else:
        assert (done.status, home.ledger) == ("failed", []) and done.error is not None
        assert done.error.code == outcome and says(sentence) in done.error.message


@requirement("docs:changes")
@pytest.mark.parametrize(
    ("tool", "beside", "status", "lines"),
    [
        (
            {"says": "Send it to all."},
            'send changed after it was shown: description "Send a text." is now "Send it to all.".',
            "completed",
            ["sent hello"],
        ),
        ({"parameters": "text: str, to: str"}, "send changed after it was shown and no longer takes", "failed", []),
    ],
)
async def test_a_question_shows_every_reason_for_which_it_is_asked_again(
    home: Home, tool: dict[str, str], beside: str, status: str, lines: list[str]
) -> None:
    execution = await home.asked()
    home.tool(**tool)
    home.settings("[approvals]\nquorum = 2\n")
    found = (await revised(home, execution.thread_id)).found
    assert POLICY in found and any(finding.startswith(beside) for finding in found)
    assert ((await home.decided(execution.thread_id)).status, home.ledger) == (status, lines)


@requirement("docs:changes")
async def test_a_store_keeps_a_bounded_number_of_definitions_and_a_damaged_one_hinders_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "MAX_DEFINITIONS", 2)
    for number in range(5):
        home.tool(says=f"Text {number}.")
        async with home.opened():
            pass
    with closing(sqlite3.connect(home.folder / "planwarden.db")) as connection, connection:
        bodies = [row[0] for row in connection.execute("SELECT body FROM records WHERE kind = 'definition'")]
        assert [body.count("Text ") for body in bodies] == [1, 1, 1]
        changes = ("'{}'", "replace(body, '60.0', '-1')", "replace(body, 'Text 4', 'Text 5')")
        for body, change in zip(bodies, changes, strict=True):
            statement = f"UPDATE records SET body = {change} WHERE kind = 'definition' AND body = ?"
            assert connection.execute(statement, (body,)).rowcount == 1
    execution = await home.asked()
    home.tool(says="Another text.")
    assert 'description "Text 4." is now "Another text."' in (await revised(home, execution.thread_id)).found[0]
    assert (await home.decided(execution.thread_id)).status == "completed"


@requirement("docs:changes")
async def test_the_definitions_that_were_replaced_first_are_forgotten_first(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "MAX_DEFINITIONS", 2)
    texts = [("Send 1.", "Post 1."), *(("Send 1.", f"Post {number}.") for number in (2, 3)), ("Send 2.", "Post 3.")]
    for send, post in texts:
        home.tool(says=send)
        both = (home.folder / "tools.py").read_text() + TOOL.format(name="post", parameters="", says=post, mark="x")
        (home.folder / "tools.py").write_text(both)
        async with home.opened():
            pass
    async with home.opened() as warden:
        stored = await RecordStore(warden.service.store, tools.KnownDefinition).all()
    assert [record.definition.description for record in stored] == ["Post 2.", "Post 3.", "Send 1.", "Send 2."]


@requirement("docs:changes")
async def test_a_definition_that_was_edited_in_the_store_is_not_told_as_what_somebody_relied_on(home: Home) -> None:
    execution = await home.asked()
    with closing(sqlite3.connect(home.folder / "planwarden.db")) as connection, connection:
        connection.execute("UPDATE records SET body = replace(body, 'Send', 'Post') WHERE kind = 'definition'")
    home.tool(says="Another text.")
    assert "the earlier definition is no longer known here" in (await revised(home, execution.thread_id)).found[0]
    assert (await home.decided(execution.thread_id)).status == "completed"


@requirement("docs:changes")
async def test_a_new_risk_holds_for_what_waits_and_a_question_about_a_lost_tool_can_be_rejected(home: Home) -> None:
    execution = await home.asked()
    home.settings('[tools.send]\nrisk = "critical"\n')
    question = await revised(home, execution.thread_id)
    assert (question.risk, question.needs) == ("critical", "signed")
    home.settings()
    home.tool(name="post")
    assert (await home.decided(execution.thread_id, NO)).status == "rejected" and home.ledger == []


@requirement("docs:changes")
async def test_a_question_stays_the_callers_and_the_next_prompt_goes_to_the_configured_model(home: Home) -> None:
    script = home.folder / "script.json"
    reply: JsonValue = {"reply": {"content": "by the script"}}
    script.write_text(json.dumps({"replies": [reply, reply]}), encoding="utf-8")
    think: dict[str, JsonValue] = {"id": "a", "description": "think"}
    async with home.opened("caller") as warden:
        execution = await warden.run_goal("think")
    async with home.opened(f"scripted:{script}") as warden:
        [question] = (await warden.get_execution(execution.thread_id)).suspensions
        assert (question.addressee, question.kind) == ("caller", "plan")
        todo: JsonValue = {
            "todoList": [think, tool_step("ask", "displayConfirmation", {"action": "?"}), {**think, "id": "b"}]
        }
        execution = await warden.submit_answer(execution.thread_id, question.suspension_id, todo)
    assert execution.steps[0].result == "by the script"
    async with home.opened("caller") as warden:
        execution = await decided(warden, execution.thread_id)
    assert [(found.addressee, found.kind) for found in execution.suspensions] == [("caller", "step")]


@requirement("docs:changes")
async def test_a_home_goes_on_where_it_is_moved_to_and_a_restored_backup_asks_again(home: Home, tmp_path: Path) -> None:
    execution = await home.asked()
    moved = Home(tmp_path / "elsewhere")
    shutil.move(home.folder, moved.folder)
    database_file, backup = moved.folder / "planwarden.db", tmp_path / "backup.db"
    async with moved.opened() as warden:
        await warden.service.store.backup(backup)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    for lines in (["sent hello"], ["sent hello", "sent hello"]):
        async with moved.opened() as warden:
            assert (await warden.get_execution(execution.thread_id)).status == "suspended"
        assert (await moved.decided(execution.thread_id)).status == "completed" and moved.ledger == lines
        for beside in moved.folder.glob("planwarden.db*"):
            beside.unlink()
        shutil.copy(backup, database_file)


TEXT: dict[str, JsonValue] = {"type": "object", "properties": {"text": {"type": "string"}}}


class Changing:
    """A warden with one tool that can become another one at any moment."""

    def __init__(self, risk: Risk = "read") -> None:
        self.ran: list[str] = []
        self.warden = planwarden.Warden(settings=Settings(home=NOWHERE), store=MemoryStore())
        self.definition = ToolDefinition(name="g_t", description="First.", input_schema=TEXT, risk=risk)
        self.become()

    def become(self, **changes: Any) -> None:
        made = define(replace(self.definition, **changes, digest=""))
        self.definition = made

        async def call(arguments: dict[str, JsonValue], context: CallContext) -> JsonValue:
            self.ran.append(made.description)
            return arguments

        self.warden.tools.replace_group("g", [Tool(made, call)])


@requirement("downstream:pins")
async def test_a_tool_that_changed_since_the_plan_is_asked_about_once_even_if_it_needs_no_approval() -> None:
    changing = Changing("read")
    async with changing.warden as warden:
        calls = [tool_step(name, "g_t", {"text": name}) for name in ("one", "two")]
        execution = await warden.execute_plan(plan(confirm("ask"), *calls))
        changing.become(description="Second.", input_schema={**TEXT, "required": ["text"]})
        execution = await approve(warden, execution)
        [question] = execution.suspensions
        assert (question.kind, question.risk) == ("approval", "confirm") and changing.ran == []
        [found] = question.found
        assert found.startswith(says("send changed since the plan was accepted: ").replace("send", "g_t"))
        assert 'arguments now required: "text"; description "First." is now "Second.".' in found
        execution = await approve(warden, execution)
    assert execution.status == "completed" and changing.ran == ["Second."] * 2


@requirement("downstream:pins")
async def test_a_confirmation_does_not_cover_what_a_tool_became() -> None:
    changing = Changing("dangerous")
    async with changing.warden as warden:
        execution = await warden.execute_plan(
            plan(confirm("ask", confirms=["do"]), tool_step("do", "g_t", {"text": "x"}))
        )
        changing.become(description="Second.")
        difference = 'g_t changed after it was shown: description "First." is now "Second."'
        with pytest.raises(StaleDefinition, match=difference):
            await approve(warden, execution)
        execution = await warden.get_execution(execution.thread_id)
        assert execution.suspensions[0].found == (f"{difference}.",) and changing.ran == []
        execution = await approve(warden, execution)
        assert execution.status == "completed" and changing.ran == ["Second."]


@requirement("downstream:pins")
async def test_a_confirmation_covers_no_call_of_a_tool_that_changed_before_it_was_asked() -> None:
    changing = Changing("dangerous")
    async with changing.warden as warden:
        steps = plan(confirm("first"), confirm("ask", confirms=["do"]), tool_step("do", "g_t", {"text": "x"}))
        execution = await warden.execute_plan(steps)
        changing.become(description="Second.")
        execution = await approve(warden, await approve(warden, execution))
        [question] = execution.suspensions
        assert (question.kind, changing.ran) == ("approval", [])
        assert question.found == ('g_t changed since the plan was accepted: description "First." is now "Second.".',)
        assert (await approve(warden, execution)).status == "completed" and changing.ran == ["Second."]


@requirement("downstream:pins")
@pytest.mark.parametrize("settings", ["[servers.d]\ntrusted = true\n", ""], ids=["in the call", "before the decision"])
async def test_a_server_that_starts_with_another_definition_is_asked_about(tmp_path: Path, settings: str) -> None:
    place, store = Place(tmp_path, settings), MemoryStore()
    place.serve(d="good")
    note = build_entry("note", annotations={"readOnlyHint": True}) | {"inputSchema": TEXT}
    place.offer(note)
    async with place.warden(store) as warden:
        await warden.search_tools()
        asked = None if settings else await run_call(warden, "d_note", {"text": "x"})
    place.offer(note | {"description": "Sends it away."})
    async with place.warden(store) as warden:
        asked = await approve(warden, asked) if asked else await run_call(warden, "d_note", {"text": "x"})
        [question] = asked.suspensions
        assert "d_note changed" in question.found[0] and "note x" not in place.ledger
        assert (await approve(warden, asked)).status == "completed"
    assert place.ledger.count("note x") == 1


def test_a_difference_is_one_bounded_line_that_quotes_what_it_shows() -> None:
    before = ToolDefinition(name="t", description="Same start, then good.", input_schema=TEXT)
    after = replace(
        before,
        description="Same start, then\n\x1b[2J\u202eevil." + "x" * 5_000,
        risk="read",
        input_schema={"type": "object", "properties": {f"p{n}": {} for n in range(50)}},
        output_schema={"type": "object"},
        annotations={"readOnlyHint": True},
    )
    found = describe_difference(before, after)
    assert found.startswith("risk dangerous is now read; arguments added: ") and "and 45 more" in found
    assert found.isprintable() and found.isascii() and len(found) <= DIFFERENCE_CHARS

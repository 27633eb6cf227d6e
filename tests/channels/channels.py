"""One driver for each channel: it looks at a question as the channel shows it, and sends answers in the channel's form.

All run in this process: pages over ASGI, MCP over an in-memory client, the terminal with a typed keyboard.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any, cast

import pytest
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams, ElicitResult, ErrorData
from msgspec.structs import replace
from pydantic import JsonValue

import planwarden
from planwarden.agent.common.errors import OutcomeUnknown, PlanwardenError
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.server.cli.session import CliSession
from planwarden.server.cli.terminal import question as terminal_question
from planwarden.server.mcp.app import META_KEY
from planwarden.server.views.fields import derive_key
from tests import kit
from tests.kit import Home, Tool, decide, define, ev
from tests.kit import by as authority_of
from tests.server.cli.support import TypedTerminal
from tests.server.inbox.support import Browser, Inbox, Page, open_inbox
from tests.server.mcp.http_support import LINKS, wired
from tests.server.mcp.support import ERAS, Document, Served, nobody, served, text_of
from tests.server.mcp.tasks_support import TakesTasks, Task
from tests.support.browser import APPS

ORIGIN = "http://127.0.0.1:8765"
SEND = ToolDefinition(
    name="send",
    description="Send a letter.",
    risk="confirm",
    input_schema={
        "type": "object",
        "required": ["to"],
        "properties": {
            "to": {"type": "string"},
            "copies": {"type": "integer", "default": 1},
            "urgent": {"type": "boolean", "default": False},
        },
    },
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What somebody wants to say, before a channel gives it a form."""

    approves: bool | None = True
    """None leaves the question open: an empty line, a closed form, a page that was only opened."""
    reason: str = ""
    edits: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """Arguments with other values."""
    rows: tuple[int, ...] | None = None
    """The rows that run, if not all."""
    row_edits: dict[int, dict[str, JsonValue]] = field(default_factory=dict[int, dict[str, JsonValue]])
    content: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """A filled-in form, or whether a call happened."""
    covers: bool = False
    """The calls of a plan that are known are approved with it."""
    plan: dict[str, JsonValue] | None = None
    """The edited plan."""
    stops: bool = False
    """Where a channel refuses a part of the answer at once, nothing more is said."""


@dataclass(frozen=True)
class Outcome:
    shown: str
    """Everything that stood in front of whoever answers."""
    said: str
    """What came back for the answer; empty where the channel offered no way to answer."""


Event = Callable[["Stage"], Awaitable[None]]
"""Something that happens beside the answers."""


async def nothing_happens(stage: "Stage") -> None:
    """Let the answers be all that happens."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One look at the question, and the answers that follow it."""

    answers: tuple[Answer, ...]
    by: str = "ann"
    before: Event = nothing_happens
    """Happens before the look."""
    meanwhile: Event = nothing_happens
    """Happens between the look and the answers."""
    ledger: tuple[str, ...] = ()
    """Every effect so far."""
    status: str = "suspended"
    """Of the execution afterwards."""
    said: str = ""
    """What the channel says to the last answer, as a pattern."""
    shows: tuple[str, ...] = ()
    """What stands in front of whoever answers, each as a pattern."""


@dataclass
class Stage:
    """A warden in memory with one question after the other, and every channel to it."""

    home: Path
    clock: kit.ManualClock = field(default_factory=kit.ManualClock)
    ledger: kit.Ledger = field(default_factory=kit.Ledger)
    send: ToolDefinition = SEND
    asked: kit.Execution | None = None
    _served: Served | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.store = kit.MemoryStore(self.clock)

    async def open(self, settings: kit.Settings) -> None:
        """Start the server, or another one in place of the last, as an operator does who changes settings."""
        await self._stack.aclose()
        tools = [*self.ledger.tools(), *_build_tools(self.ledger)]
        opening = served(self.home, tools=tools, store=self.store, settings=settings)
        self._served = await self._stack.enter_async_context(opening)
        self.become(self.send)
        self.warden.service.inbox_url = f"{ORIGIN}/inbox"

    async def close(self) -> None:
        await self._stack.aclose()

    def become(self, definition: ToolDefinition) -> None:
        """Define `send` in this way from now on."""
        made = self.send = define(replace(definition, digest=""))

        async def call(arguments: dict[str, JsonValue], context: CallContext) -> JsonValue:
            self.ledger.lines.append(" ".join(["send", *(str(arguments[name]) for name in ("to", "copies", "urgent"))]))
            return "sent"

        self.warden.tools.replace_group("desk", [Tool(made, call)])

    @property
    def server(self) -> Any:
        assert self._served is not None
        return self._served.server

    @property
    def warden(self) -> planwarden.Warden:
        assert self._served is not None
        return self._served.warden

    @property
    def inbox(self) -> Inbox:
        return open_inbox(self.warden)

    async def ask(self, plan: dict[str, JsonValue], options: dict[str, JsonValue], principal: str) -> kit.Suspension:
        options = {"synthesize": False, **options}
        self.asked = await self.warden.execute_plan(plan, options=options, wait_seconds=60, principal=principal)
        assert self.asked.suspensions, self.asked
        return self.asked.suspensions[0]

    async def look(self, principal: str = "local") -> kit.Execution:
        assert self.asked is not None
        return await self.warden.get_execution(self.asked.thread_id, observations_after=0, principal=principal)

    async def find(self) -> Any:
        assert self.asked is not None
        return await self.warden.service.find(self.asked.execution_id)

    async def events(self, kind: type[Any]) -> list[Any]:
        assert self.asked is not None
        return [entry.event for entry in await self.store.read(self.asked.execution_id) if type(entry.event) is kind]

    async def edit_by_model(self, **edits: JsonValue) -> None:
        [question] = (await self.look()).suspensions
        assert question.tool_call is not None
        edit = kit.Decision(approved=True, modified_args={**question.tool_call.arguments, **edits})
        await decide(self.warden, question, edit, authority_of("local", "claimed", "mcp"), wait_seconds=0)


@asynccontextmanager
async def open_stage(home: Path, settings: kit.Settings) -> AsyncGenerator[Stage]:
    stage = Stage(home)
    try:
        await stage.open(settings)
        yield stage
    finally:
        await stage.close()


def _build_tools(ledger: kit.Ledger) -> list[object]:
    @planwarden.tool(name="wipe", risk="critical")
    async def wipe(what: str = "all") -> str:
        """Delete everything."""
        ledger.lines.append(f"wipe {what}")
        return "gone"

    @planwarden.tool(name="pay", risk="read", effect="effect")
    async def pay(amount: int) -> str:
        """Pay; the first call gets lost."""
        ledger.lines.append(f"pay {amount}")
        if ledger.lines.count(f"pay {amount}") == 1:
            raise OutcomeUnknown("the line went dead")
        return "paid"

    return [wipe, pay]


@dataclass(frozen=True)
class Channel(ABC):
    """A way to decide."""

    name: str
    assurance: ev.Assurance
    """What an answer is worth here."""
    recorded_as: str
    """How the log names the channel."""
    names_people: bool = False
    """Whether the log names the person, and not only the owner of the execution."""
    is_quiet: bool = False
    """Whether a late or repeated answer is ignored without a word."""
    is_drawn: bool = True
    """Whether somebody sees the question, and not only its values."""

    @abstractmethod
    async def decide(self, stage: Stage, question: kit.Suspension, turn: Turn) -> list[Outcome]:
        """Look once, let what happens meanwhile happen, send each answer, and return what was shown and said."""


@dataclass(frozen=True)
class InboxPage(Channel):
    async def decide(self, stage: Stage, question: kit.Suspension, turn: Turn) -> list[Outcome]:
        browser = stage.inbox.browser()
        await browser.log_in(turn.by)
        where = f"/inbox/suspensions/{question.suspension_id}"
        page = await browser.open(where)
        shown = " ".join(f"{unescape(page.words)}\n{_list_inputs(page)}".split())
        await turn.meanwhile(stage)
        return [Outcome(shown, await self._send(browser, where, page, question, answer)) for answer in turn.answers]

    async def _send(self, browser: Browser, where: str, page: Page, question: kit.Suspension, answer: Answer) -> str:
        forms = [form for form in page.forms if form.action.endswith("/decision")]
        if answer.approves is None or not forms:
            return (await browser.open(where)).words
        press = "approve" if answer.approves else "reject"
        if ("decision", press, True) not in forms[0].buttons:
            # Whoever presses it all the same sends what the button would have sent.
            sent = await browser.send(forms[0].action, {**forms[0].fields, "decision": [press]})
            return sent.words if sent.status >= 400 else (await browser.open(where)).words
        done = await browser.submit(forms[0], press=press, **self._fill(page, answer))
        if done.status == 200:
            # What was edited is shown as a difference, and approved there.
            done = await browser.submit(done.form("/decision"), press=press)
        return done.words if done.status >= 400 else (await browser.open(where)).words

    def _fill(self, page: Page, answer: Answer) -> dict[str, str | list[str] | None]:
        fields: dict[str, str | list[str] | None] = {"reason": answer.reason} if answer.reason else {}
        if "happened" in answer.content:
            fields["happened"] = "yes" if answer.content["happened"] else "no"
            fields["result"] = json.dumps(answer.content["result"]) if "result" in answer.content else ""
        else:
            # The options of a choice are JSON.
            fields |= {f"arg.{derive_key(name)}": _type(page, name, value) for name, value in answer.content.items()}
        fields |= {f"arg.{derive_key(name)}": _type(page, name, value) for name, value in answer.edits.items()}
        for row, edits in answer.row_edits.items():
            fields |= {f"row{row}.arg.{derive_key(name)}": _type(page, name, value) for name, value in edits.items()}
        if answer.rows is not None:
            fields["row"] = [str(row) for row in answer.rows]
        if answer.covers:
            fields["cover"] = "yes"
        if answer.plan is not None:
            fields["plan"] = json.dumps(answer.plan)
        return fields


def _type(page: Page, name: str, value: JsonValue) -> str:
    is_choice = f'<select id="arg.{derive_key(name)}"' in page.text
    return value if isinstance(value, str) and not is_choice else json.dumps(value)


def _list_inputs(page: Page) -> str:
    return "\n".join(
        text for form in page.forms for name, texts in form.fields.items() for text in texts if "." in name
    )


@dataclass(frozen=True)
class TerminalDialogue(Channel):
    """A person who types at the terminal, in the session that `planwarden approve` and `reject` run."""

    async def decide(self, stage: Stage, question: kit.Suspension, turn: Turn) -> list[Outcome]:
        warden, outcomes = stage.warden, list[Outcome]()
        home = Home(warden.settings, model=kit.CallerModel())
        home.tools = warden.tools
        execution = await stage.find()
        view: kit.Suspension | None = None
        for answer in turn.answers:
            terminal = TypedTerminal(*_type_lines(question, answer))
            session = CliSession(home, terminal)
            view = view or session.build_view(execution, execution.suspensions[question.suspension_id])
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("LOGNAME", turn.by)
                for editor in ("EDITOR", "VISUAL"):
                    patch.delenv(editor, raising=False)
                decision = self._ask(session, view, answer, execution.principal)
                if not outcomes:
                    await turn.meanwhile(stage)
                said = terminal.shown if decision is None else await self._record(stage, session, view, decision)
            outcomes.append(Outcome(terminal.shown, said))
        return outcomes

    def _ask(self, session: CliSession, view: kit.Suspension, answer: Answer, owner: str) -> kit.Decision | None:
        if not session.can_approve(view, owner):
            # `planwarden reject` asks nothing.
            return kit.Decision(approved=False, reason=answer.reason or None) if answer.approves is False else None
        terminal_question.show(session.terminal, view.card, is_paged=True)
        return terminal_question.ask(session.terminal, view.card, session.find_faults)

    async def _record(self, stage: Stage, session: CliSession, view: kit.Suspension, decision: kit.Decision) -> str:
        try:
            recorded = await session.record(stage.warden.service, view, decision)
        except PlanwardenError as error:
            return f"{error.code}: {error.message}"
        return (await stage.warden.service.wait(recorded, 60)).status


def _type_lines(question: kit.Suspension, answer: Answer) -> list[str]:
    if answer.approves is None:
        return [""]
    if question.kind == "reconcile":
        if not answer.approves:
            return ["g", answer.reason]
        return ["y", json.dumps(answer.content.get("result"))] if answer.content["happened"] else ["n"]
    if question.answer_schema is not None:
        properties = cast("dict[str, Any]", question.answer_schema["properties"])
        # Nobody has to fill in what they reject, but the terminal asks for the fields first.
        content = answer.content or {name: found.get("enum", ["1"])[0] for name, found in properties.items()}
        values = (content.get(name, "") for name in properties)
        typed = [value if isinstance(value, str) else json.dumps(value) for value in values]
        return [*typed, *(["y"] if answer.approves else ["r", answer.reason])]
    if not answer.approves:
        return ["n", answer.reason]
    lines = ["v"] if question.tool_call is not None and len(str(question.tool_call.arguments)) > 400 else []
    if answer.edits:
        call = question.tool_call
        assert call is not None
        lines += ["e", json.dumps({**call.arguments, **answer.edits})]
    for row, edits in answer.row_edits.items():
        lines += ["e", f"{row + 1}", json.dumps({**question.calls[row].arguments, **edits})]
    if answer.rows is not None:
        lines += ["s", ",".join(f"{row + 1}" for row in answer.rows)]
    if answer.plan is not None:
        lines += ["e", json.dumps(answer.plan)]
    return [*lines, "" if answer.stops else "c" if answer.covers else "y"]


def build_fields(question: kit.Suspension, schema: Document | None, answer: Answer) -> Document | None:
    """Return the answer as the content of a form with this schema; None if the form has no field for a part of it."""
    if schema is None or answer.rows is not None or answer.row_edits or answer.covers or answer.plan is not None:
        return None
    reason = {"reason": answer.reason} if answer.reason and "reason" in schema["properties"] else {}
    content: Document = {"decision": "approve" if answer.approves else "reject", **reason, **answer.content}
    content |= {f"arg_{name}": value for name, value in answer.edits.items()}
    return content if content.keys() <= schema["properties"].keys() else None


@dataclass(frozen=True)
class HostForm(Channel):
    """The form that a host shows; it is pushed while the call waits, or the call returns it."""

    is_pushed: bool = False

    async def decide(self, stage: Stage, question: kit.Suspension, turn: Turn) -> list[Outcome]:
        outcomes, pending = list[Outcome](), list(turn.answers)
        shown: list[str] = []
        offered = True

        async def fill(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
            nonlocal offered
            if not isinstance(params, ElicitRequestFormParams):
                offered = False
                return ElicitResult(action="decline")
            shown.append(f"{params.message}\n{json.dumps(params.requested_schema, ensure_ascii=False)}")
            if len(shown) == 1:
                await turn.meanwhile(stage)
            if pending[0].approves is None:
                return ElicitResult(action="cancel")
            content = build_fields(question, params.requested_schema, pending[0])
            offered = content is not None
            return ElicitResult(action="accept", content=content) if content else ElicitResult(action="decline")

        era = ERAS[0] if self.is_pushed else ERAS[1]
        async with Client(stage.server, mode=era, elicitation_callback=fill) as client:
            while pending:
                # The call is the model's: it proposes what its person then decides.
                proposal = {"approved": pending[0].approves is not False or not shown}
                result = await _resume(client, question, proposal)
                is_answer = offered and (bool(shown) or result.is_error)
                outcomes.append(Outcome("\n".join(shown), text_of(result) if is_answer else ""))
                pending.pop(0)
        return outcomes


async def _resume(client: Client, question: kit.Suspension, decision: Document, **more: Any) -> CallToolResult:
    ids = {"threadId": question.thread_id, "suspensionId": question.suspension_id}
    return await client.call_tool("resume_execution", {**ids, "decision": decision, "waitSeconds": 60, **more})


@dataclass(frozen=True)
class LinkedPage(InboxPage):
    """A host that opens the address of the question's page, and the person who decides there."""

    async def decide(self, stage: Stage, question: kit.Suspension, turn: Turn) -> list[Outcome]:
        ids = {"threadId": question.thread_id, "suspensionId": question.suspension_id}
        call: Document = {"arguments": {**ids, "decision": {"approved": True}, "waitSeconds": 0}}
        async with wired(stage.server) as wire:
            client = wire.declaring(LINKS)
            asked = await client.call("resume_execution", **call)
            if asked["resultType"] != "input_required":
                return [Outcome("", asked["content"][0]["text"]) for _ in turn.answers]
            [(key, request)] = asked["inputRequests"].items()
            assert request["params"]["url"].endswith(f"/suspensions/{question.suspension_id}")
            opened: Document = {"action": "accept" if turn.answers[0].approves is not None else "decline"}
            decided = await super().decide(stage, question, turn)
            after = await client.call(
                "resume_execution", **call, inputResponses={key: opened}, requestState=asked["requestState"]
            )
        words = after["content"][0]["text"] if "content" in after else json.dumps(after)
        return [
            Outcome(f"{request['params']['message']}\n{found.shown}", f"{found.said}\n{words}") for found in decided
        ]


@dataclass(frozen=True)
class AppView(Channel):
    """The view that a host draws of the MCP App; its nonce counts, once."""

    async def decide(self, stage: Stage, question: kit.Suspension, turn: Turn) -> list[Outcome]:
        ids = {"threadId": question.thread_id, "suspensionId": question.suspension_id}
        async with Client(stage.server, mode="auto", extensions=APPS) as client:
            result = await client.call_tool("get_execution", {"threadId": question.thread_id})
            if result.is_error:
                return [Outcome("", text_of(result)) for _ in turn.answers]
            questions = (result.meta or {})[META_KEY]
            [drawn] = [found for found in questions if found["suspensionId"] == question.suspension_id]
            shown = "\n".join([drawn["heading"], *drawn["found"], *drawn["facts"], drawn["label"], drawn["words"]])
            await turn.meanwhile(stage)
            outcomes = list[Outcome]()
            for answer in turn.answers:
                empty: Document = {"reason": "x"}
                content = empty if answer.approves is None else build_fields(question, drawn["schema"], answer)
                if content is None or drawn["nonce"] is None:
                    outcomes.append(Outcome(shown, ""))
                    continue
                pressed: Document = {**ids, "nonce": drawn["nonce"], "content": content, "waitSeconds": 60}
                outcomes.append(Outcome(shown, text_of(await client.call_tool("app_decide", pressed))))
        return outcomes


@dataclass(frozen=True)
class TaskAnswers(Channel):
    """A client that polls the execution as a task, and sends its person's answers with `tasks/update`."""

    async def decide(self, stage: Stage, question: kit.Suspension, turn: Turn) -> list[Outcome]:
        async with Client(stage.server, mode="auto", extensions=[TakesTasks()], elicitation_callback=nobody) as client:
            task = Task(client, question.execution_id)
            try:
                requests: Document = (await task.get()).get("inputRequests") or {}
            except MCPError as error:
                return [Outcome("", f"unknown_suspension: {error}") for _ in turn.answers]
            keys = [key for key in requests if key.startswith(f"{question.suspension_id}.")]
            forms = [requests[key]["params"] for key in keys if requests[key]["params"]["mode"] == "form"]
            if not forms:
                return [Outcome(json.dumps(requests), "") for _ in turn.answers]
            shown = f"{forms[0]['message']}\n{json.dumps(forms[0]['requestedSchema'], ensure_ascii=False)}"
            await turn.meanwhile(stage)
            outcomes = list[Outcome]()
            for answer in turn.answers:
                content = build_fields(question, forms[0]["requestedSchema"], answer)
                if answer.approves is not None and content is None:
                    outcomes.append(Outcome(shown, ""))
                    continue
                closed: Document = {"action": "cancel"}
                response = closed if answer.approves is None else {"action": "accept", "content": content}
                outcomes.append(Outcome(shown, await self._update(task, keys[0], response)))
                assert stage.asked is not None
                await stage.warden.service.wait(await stage.find(), 60)
        return outcomes

    async def _update(self, task: Task, key: str, response: Document) -> str:
        try:
            await task.update(**{key: response})
        except MCPError as error:
            return str(error)
        return json.dumps(await task.get())


def build_decision(question: kit.Suspension, answer: Answer) -> kit.Decision:
    """Return the answer as a program or a model sends it."""
    call, edits = question.tool_call, dict[str, JsonValue]()
    if answer.edits and call is not None:
        edits = {**call.arguments, **answer.edits}
    for row, changes in answer.row_edits.items():
        edits[str(row)] = {**question.calls[row].arguments, **changes}
    content: dict[str, JsonValue] = {**answer.content}
    if answer.rows is not None:
        content["items"] = [*answer.rows]
    if answer.covers:
        content["cover"] = True
    if answer.plan is not None:
        content["plan"] = answer.plan
    return kit.Decision(
        approved=None if answer.content and answer.approves else answer.approves,
        reason=answer.reason or None,
        modified_args=edits or None,
        content=content or None,
    )


@dataclass(frozen=True)
class ResumeTool(Channel):
    """`resume_execution` from a model whose host can ask nobody: what it sends is a claim."""

    async def decide(self, stage: Stage, question: kit.Suspension, turn: Turn) -> list[Outcome]:
        async with Client(stage.server, mode="auto") as client:
            shown = text_of(await client.call_tool("get_execution", {"threadId": question.thread_id}))
            await turn.meanwhile(stage)
            return [Outcome(shown, await self._send(client, question, answer)) for answer in turn.answers]

    async def _send(self, client: Client, question: kit.Suspension, answer: Answer) -> str:
        made = build_decision(question, answer)
        named = {"approved": made.approved, "reason": made.reason, "content": made.content}
        sent: Document = {name: value for name, value in named.items() if value is not None}
        if made.modified_args is not None:
            sent["modifiedArgs"] = made.modified_args
        return text_of(await _resume(client, question, sent, digest=question.digest))


@dataclass(frozen=True)
class PythonProgram(Channel):
    """A program that embeds planwarden: it is the operator."""

    async def decide(self, stage: Stage, question: kit.Suspension, turn: Turn) -> list[Outcome]:
        await turn.meanwhile(stage)
        outcomes = list[Outcome]()
        for answer in turn.answers:
            if answer.approves is None:
                outcomes.append(Outcome("", ""))
                continue
            try:
                done = await stage.warden.resume_execution(
                    question.thread_id, question.suspension_id, build_decision(question, answer), wait_seconds=60
                )
            except PlanwardenError as error:
                outcomes.append(Outcome("", f"{error.code}: {error.message}"))
            else:
                outcomes.append(Outcome("", done.status))
        return outcomes


CHANNELS: Sequence[Channel] = (
    InboxPage("page", "human", "inbox", names_people=True),
    TerminalDialogue("terminal", "human", "terminal", names_people=True),
    HostForm("form", "client", "elicitation"),
    HostForm("form, pushed", "client", "elicitation", is_pushed=True),
    LinkedPage("link", "human", "inbox", names_people=True),
    AppView("app", "client", "app"),
    TaskAnswers("task", "client", "tasks", is_quiet=True),
    ResumeTool("tool", "claimed", "mcp", is_drawn=False),
    PythonProgram("python", "embedder", "python", is_drawn=False),
)

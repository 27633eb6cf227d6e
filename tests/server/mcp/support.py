"""Shared by tests of MCP: a served warden, clients of both eras, and calls that check text and structured content."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mcp import Client, types
from mcp.client import ClientRequestContext
from mcp.client.extension import ClientExtension
from mcp.client.session import ElicitationFnT
from pydantic import JsonValue

import planwarden
from planwarden.agent.models.scripted import ScriptedModel
from planwarden.agent.ports.model import Model
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.settings.secrets import find_request_state_key
from planwarden.storage.secret_files import SecretFiles
from tests.kit import Authority, CallerModel, Decision, Ledger, MemoryStore, Settings, Store, Warden, decide

Era = Literal["legacy", "auto"]
INBOX = "http://127.0.0.1:4711/inbox"
ERAS: tuple[Era, ...] = ("legacy", "auto")
"""`mode` of the SDK's client: the handshake of 2025-11-25 and before, or 2026-07-28."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Served:
    server: PlanwardenServer
    warden: Warden


@asynccontextmanager
async def served(
    home: Path,
    *,
    tools: Sequence[object] = (),
    script: list[JsonValue] | None = None,
    store: Store | None = None,
    settings: Settings | None = None,
    on_disk: bool = False,
    model: Model | None = None,
) -> AsyncGenerator[Served]:
    """A server without a disk, or on `home`; the caller thinks unless a script or a model is given."""
    made = Warden(
        settings=settings or Settings(home=home),
        model=model or (CallerModel() if script is None else ScriptedModel({"replies": script})),
        tools=tools,
        store=None if on_disk else store or MemoryStore(),
    )

    async with made:
        key = await find_request_state_key(made.settings, SecretFiles(home))
        yield Served(PlanwardenServer(lambda: nullcontext(made.service), key, warden=made), made)


@dataclass
class Person:
    """Answers forms with `action` and `content`, and keeps the forms that were shown."""

    action: Literal["accept", "decline", "cancel"] = "accept"
    content: dict[str, str | int | float | bool | list[str] | None] | None = None
    shown: list[types.ElicitRequestFormParams] = field(default_factory=list[types.ElicitRequestFormParams])

    async def __call__(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        assert isinstance(params, types.ElicitRequestFormParams)
        self.shown.append(params)
        return types.ElicitResult(action=self.action, content=self.content)


@dataclass
class Browser:
    """Calls `opens` for an address, answers with `action`, and keeps the requests. It takes no forms."""

    action: Literal["accept", "decline", "cancel"] = "accept"
    content: dict[str, str | int | float | bool | list[str] | None] | None = None
    opens: Callable[[str], Awaitable[object]] | None = None
    sent: list[types.ElicitRequestURLParams] = field(default_factory=list[types.ElicitRequestURLParams])

    async def __call__(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        assert isinstance(params, types.ElicitRequestURLParams), params
        self.sent.append(params)
        if self.opens is not None:
            await self.opens(params.url)
        return types.ElicitResult(action=self.action, content=self.content)


def approving(**content: str | float | bool) -> Person:
    return Person(content={"decision": "approve", **content})


async def approve_elsewhere(asked: Document, first: Client, second: Client) -> Document:
    """The form that the first process makes of a question is answered at the second one. Returns what that says."""
    arguments: dict[str, Any] = {**ids_of(asked), "decision": {"approved": True}}
    question = await first.session.call_tool("resume_execution", arguments, allow_input_required=True)
    assert isinstance(question, types.InputRequiredResult)
    answered = await second.session.call_tool(
        "resume_execution",
        arguments,
        input_responses={"decision": types.ElicitResult(action="accept", content={"decision": "approve"})},
        request_state=question.request_state,
    )
    return answered.structured_content


def sender(ledger: Ledger) -> object:
    """An effect that the operator lets a form decide."""

    @planwarden.tool(risk="confirm")
    async def send(to: str, copies: int = 1, urgent: bool = False) -> str:
        """Send a letter."""
        ledger.lines.append(f"send {to} {copies} {urgent}")
        return "sent"

    return send


@dataclass(frozen=True)
class Desk(Served):
    """A served warden with the tools of a ledger and `send`, and a client of it."""

    client: Client
    ledger: Ledger

    async def ok(self, name: str, /, **arguments: Any) -> Document:
        return await ok(self.client, name, **arguments)

    async def refused(self, name: str, /, **arguments: Any) -> Document:
        return await refused(self.client, name, **arguments)

    async def call(self, name: str, /, **arguments: Any) -> types.CallToolResult:
        return await self.client.call_tool(name, arguments)


@asynccontextmanager
async def open_desk(
    home: Path,
    era: Era = "auto",
    *tools: object,
    asks: ElicitationFnT | None = None,
    extensions: Sequence[ClientExtension] = (),
    inbox_url: str | None = None,
    **options: Any,
) -> AsyncGenerator[Desk]:
    """Serve also these tools, with the options of `served`, to a client that answers forms with `asks`."""
    ledger = Ledger()
    async with (
        served(home, tools=[*ledger.tools(), sender(ledger), *tools], **options) as found,
        Client(found.server, mode=era, elicitation_callback=asks, extensions=extensions) as client,
    ):
        found.warden.service.inbox_url = inbox_url
        yield Desk(found.server, found.warden, client, ledger)


async def decide_on_page(found: Served, *, approved: bool = True) -> None:
    """What a person does on the page, with the one open question."""
    [question] = (await found.warden.list_suspensions()).suspensions
    person = Authority(assurance="human", channel="inbox", principal="ann", digest=question.digest)
    await decide(found.warden, question, Decision(approved=approved), person)


async def ok(client: Client, name: str, /, **arguments: Any) -> Document:
    """The structured content of a call that succeeds; its text must carry the ids and the next action too.

    Lists that the answer leaves out because they are empty are filled in.
    """
    result = await client.call_tool(name, arguments)
    assert not result.is_error, text_of(result)
    document: Document = result.structured_content
    text = text_of(result)
    if "threadId" in document:
        document = {"steps": [], "suspensions": [], **document}
        suspensions = [found["suspensionId"] for found in document["suspensions"]]
        for needed in (document["threadId"], document["nextAction"], document["status"], *suspensions):
            assert needed in text
    return document


async def refused(client: Client, name: str, /, **arguments: Any) -> Document:
    """The error of a call that is refused; code and sentence must be in the text too."""
    result = await client.call_tool(name, arguments)
    assert result.is_error, text_of(result)
    error: Document = result.structured_content["error"]
    assert set(error) == {"code", "message", "details"}
    assert text_of(result).startswith(f"{error['code']}: {error['message']}")
    return error


def text_of(result: types.CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def question_of(document: Document) -> Document:
    [question] = document["suspensions"]
    return question


def ids_of(document: Document) -> Document:
    return {"threadId": document["threadId"], "suspensionId": question_of(document)["suspensionId"]}


async def nobody(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult | types.ErrorData:
    """A client that must not be asked."""
    raise AssertionError(f"a form was shown: {params}")

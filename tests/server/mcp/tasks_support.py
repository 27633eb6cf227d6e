"""What tests of tasks share: a client that takes tasks, and the requests of the extension as it sends them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import anyio
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.client.session import ElicitationFnT
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, Request, RequestParams, Result, SubscriptionFilter
from mcp.types import SubscriptionsListenRequest as ListenRequest
from mcp.types import SubscriptionsListenRequestParams as ListenParams
from pydantic import BaseModel, ConfigDict, JsonValue

from planwarden.server.mcp.task_state import TASKS
from tests.server.mcp.support import Desk, Document, nobody, open_desk

TERMINAL = ("completed", "failed", "cancelled")


class AnyResult(Result):
    """A result with whatever it has."""

    model_config = ConfigDict(extra="allow")

    def document(self) -> Document:
        return self.model_dump(by_alias=True, mode="json")


class Created(AnyResult):
    result_type: Literal["task"] = "task"


class TaskParams(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(Request[TaskParams, str]):
    """A request of the extension, with the id of its task in the routing header."""

    params: TaskParams
    name_param = "taskId"


class TaskUpdate(BaseModel):
    """A task as a notification tells it."""

    model_config = ConfigDict(extra="allow")


class TakesTasks(ClientExtension):
    """Claims tasks, and keeps what it is told about them."""

    identifier = TASKS

    def __init__(self) -> None:
        self.updates: list[Document] = []
        self._received = anyio.Event()

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=Created, resolve=self._resolve),)

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        return (NotificationBinding(method="notifications/tasks", params_type=TaskUpdate, handler=self._receive),)

    async def wait_for_update(self, matches: Callable[[Document], bool]) -> Document:
        """The first notification, past or to come, that matches."""
        with anyio.fail_after(60):
            while True:
                received = self._received
                for found in self.updates:
                    if matches(found):
                        return found
                await received.wait()

    async def _receive(self, update: TaskUpdate) -> None:
        self.updates.append(update.model_dump(by_alias=True))
        self._received.set()
        self._received = anyio.Event()

    async def _resolve(self, created: Created, context: ClaimContext) -> CallToolResult:
        raise AssertionError("these tests look at the task themselves")


@dataclass(frozen=True)
class Task:
    client: Client
    task_id: str
    created: Document = field(default_factory=dict[str, Any])

    def seen_by(self, client: Client) -> "Task":
        return replace(self, client=client)

    async def _send(self, method: str, responses: dict[str, Any] | None = None) -> Document:
        params = TaskParams(task_id=self.task_id, input_responses=responses)
        request = TaskRequest(method=f"tasks/{method}", params=params)
        return (await self.client.session.send_request(request, AnyResult)).document()

    async def get(self) -> Document:
        return await self._send("get")

    async def cancel(self) -> Document:
        return await self._send("cancel")

    async def update(self, **responses: JsonValue | Mapping[str, str]) -> Document:
        return await self._send("update", responses)

    async def answer(self, response: JsonValue) -> Document:
        return await self.update(**{await self.key(): response})

    async def until(self, *statuses: str) -> Document:
        """Return the task as soon as it has one of the statuses; it is asked for as fast as the server answers."""
        with anyio.fail_after(60):
            while True:
                found = await self.get()
                if found["status"] in statuses:
                    return found
                await anyio.lowlevel.checkpoint()

    async def key(self) -> str:
        [key] = (await self.until("input_required"))["inputRequests"]
        return key

    async def over(self) -> Document:
        return execution_of(await self.until(*TERMINAL))

    async def listen(self, *others: str) -> None:
        await listen(self.client, self.task_id, *others)


def execution_of(task: Document) -> Document:
    """Return the structured content of a task's result; its text has to be enough too."""
    assert task["status"] == "completed", task
    result = CallToolResult.model_validate(task["result"])
    shown: Document = result.structured_content
    [content] = result.content
    assert shown["nextAction"] in content.model_dump()["text"]
    return shown


async def start(client: Client, name: str, /, **arguments: Any) -> Task:
    result = await client.session.call_tool(name, arguments, allow_claimed=True)
    assert isinstance(result, Created), result
    created = result.document()
    return Task(client, created["taskId"], created)


def take_tasks(
    home: Path,
    *tools: object,
    asks: ElicitationFnT | None = nobody,
    extension: TakesTasks | None = None,
    **options: Any,
) -> AbstractAsyncContextManager[Desk]:
    """Open a desk whose client takes tasks, and shows forms and addresses unless `asks` is `None`."""
    return open_desk(home, "auto", *tools, asks=asks, extensions=[extension or TakesTasks()], **options)


async def run(desk: Desk, steps: JsonValue, **arguments: Any) -> Task:
    return await start(desk.client, "execute_plan", plan=steps, **arguments)


async def listen(client: Client, *task_ids: str) -> None:
    """Hold a stream about tasks open until cancelled."""
    await listen_to(client, taskIds=list(task_ids))


async def listen_to(client: Client, **wanted: object) -> None:
    """Hold a stream about what is wanted open until cancelled."""
    given = SubscriptionFilter.model_validate(wanted)
    await client.session.send_request(ListenRequest(params=ListenParams(notifications=given)), AnyResult)


async def code_of(call: Any) -> int:
    """The code of the protocol error that an awaitable ends with."""
    try:
        await call
    except MCPError as error:
        return error.code
    raise AssertionError("it gave a result")

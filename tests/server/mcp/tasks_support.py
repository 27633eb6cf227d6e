"""What tests of tasks share: a client that takes tasks, and the requests of the extension as it sends them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import anyio
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, NotificationBinding, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, Request, RequestParams, Result, SubscriptionFilter
from mcp.types import SubscriptionsListenRequest as ListenRequest
from mcp.types import SubscriptionsListenRequestParams as ListenParams
from pydantic import BaseModel, ConfigDict, JsonValue

from planwarden.server.mcp.tasks.state import TASKS
from tests.server.mcp.support import Document

TERMINAL = ("completed", "failed", "cancelled")


class AnyResult(Result):
    """A result with whatever it has."""

    model_config = ConfigDict(extra="allow")

    def document(self) -> Document:
        return self.model_dump(by_alias=True, mode="json")


class Created(AnyResult):
    """The answer to a call that became a task."""

    result_type: Literal["task"] = "task"


class TaskParams(RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams
    name_param = "taskId"


class UpdateTask(Request[UpdateParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    params: UpdateParams
    name_param = "taskId"


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
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


async def start(client: Client, name: str, /, **arguments: Any) -> Document:
    """The task that a call became."""
    result = await client.session.call_tool(name, arguments, allow_claimed=True)
    assert isinstance(result, Created), result
    return result.document()


async def get(client: Client, task_id: str) -> Document:
    found = await client.session.send_request(GetTask(params=TaskParams(task_id=task_id)), AnyResult)
    return found.document()


async def update(client: Client, task_id: str, **responses: JsonValue | Mapping[str, str]) -> Document:
    params = UpdateParams(task_id=task_id, input_responses=responses)
    return (await client.session.send_request(UpdateTask(params=params), AnyResult)).document()


async def cancel(client: Client, task_id: str) -> Document:
    found = await client.session.send_request(CancelTask(params=TaskParams(task_id=task_id)), AnyResult)
    return found.document()


async def until(client: Client, task_id: str, *statuses: str) -> Document:
    """The task as soon as it has one of the statuses; asked for as fast as the server answers."""
    with anyio.fail_after(60):
        while True:
            found = await get(client, task_id)
            if found["status"] in statuses:
                return found
            await anyio.lowlevel.checkpoint()


async def key_of(client: Client, task_id: str) -> str:
    """The key of the one question that the task asks."""
    [key] = (await until(client, task_id, "input_required"))["inputRequests"]
    return key


async def listen(client: Client, *task_ids: str) -> None:
    """Hold a stream about tasks open until cancelled."""
    wanted = SubscriptionFilter.model_validate({"taskIds": list(task_ids)})
    await client.session.send_request(ListenRequest(params=ListenParams(notifications=wanted)), AnyResult)


async def code_of(call: Any) -> int:
    """The code of the protocol error that an awaitable ends with."""
    try:
        await call
    except MCPError as error:
        return error.code
    raise AssertionError("it gave a result")

"""Subscriptions over MCP in both eras: owners receive changes, and a slow listener delays nobody."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from mcp import Client, types
from mcp.server import subscriptions
from pydantic import JsonValue

from planwarden.server.auth.caller import Caller
from planwarden.server.mcp.resources import EXECUTIONS, PLANS, SUSPENSIONS, TOOLS
from planwarden.server.mcp.server import PlanwardenServer
from planwarden.server.mcp.subscriptions import legacy
from planwarden.server.mcp.subscriptions.listen import MAX_STREAMS
from planwarden.server.mcp.subscriptions.topics import MAX_TOPICS, MAX_URI_CHARS, Topic, TopicWatcher
from planwarden.server.plans import library
from planwarden.server.settings.tables import ToolSettings
from planwarden.storage.sqlite.store import MemoryStore
from tests.kit import (
    Authority,
    Decision,
    ManualClock,
    OperatorPolicy,
    Requester,
    Service,
    Settings,
    Suspension,
    decide,
    save_plan,
    start_as,
)
from tests.requirements import requirement
from tests.server.mcp.http_support import serving
from tests.server.mcp.support import ERAS, Era, Served, sender, served
from tests.server.mcp.tasks_support import TakesTasks, code_of, listen, listen_to
from tests.support.wardens import Ledger, confirm, plan, tool_step, warden
from tests.tools.test_python_tools import build_tool

NOTED: dict[str, JsonValue] = plan(tool_step("a", "note", {"text": "y"}))
CONFIRMED: JsonValue = plan(confirm("a"), tool_step("b", "note", {"text": "x"}))
PERSON = Authority(assurance="human", channel="cli", principal="local")


TOOL_LIST, PROMPT_LIST = "the list of tools", "the list of prompts"


@dataclass
class Listener:
    """A client of either era that keeps the addresses it was told of."""

    uris: list[str] = field(default_factory=list[str])
    _bell: anyio.Event = field(default_factory=anyio.Event)

    async def wait_for_updates(self, uri: str, times: int = 1) -> None:
        """Returns when the address was told so often."""
        with anyio.fail_after(60):
            while self.uris.count(uri) < times:
                await self._bell.wait()

    async def handle(self, message: object) -> None:
        """Note what the older era pushes, and events of the newer one."""
        match message:
            case types.ResourceUpdatedNotification():
                self.uris.append(str(message.params.uri))
            case subscriptions.ResourceUpdated():
                self.uris.append(message.uri)
            case types.ToolListChangedNotification() | subscriptions.ToolsListChanged():
                self.uris.append(TOOL_LIST)
            case types.PromptListChangedNotification() | subscriptions.PromptsListChanged():
                self.uris.append(PROMPT_LIST)
            case _:
                pass
        self._bell.set()
        self._bell = anyio.Event()

    @asynccontextmanager
    async def subscribed(
        self, server: PlanwardenServer, era: Era, *uris: str, has_lists: bool = False
    ) -> AsyncGenerator[Client]:
        """A client with these subscriptions, and with those to lists."""
        if era == "legacy":
            async with Client(server, mode=era, message_handler=self.handle) as client:
                if has_lists:
                    await client.list_tools()
                for uri in uris:
                    await subscribe(client, uri)
                yield client
            return
        async with (
            Client(server, mode=era) as client,
            client.listen(
                resource_subscriptions=uris, tools_list_changed=has_lists, prompts_list_changed=has_lists
            ) as stream,
            anyio.create_task_group() as tasks,
        ):

            async def hear() -> None:
                async for event in stream:
                    await self.handle(event)

            tasks.start_soon(hear)
            yield client
            tasks.cancel_scope.cancel()


async def subscribe(client: Client, uri: str) -> None:
    await client.session.send_request(
        types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri)), types.EmptyResult
    )


async def unsubscribe(client: Client, uri: str) -> None:
    await client.session.send_request(
        types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri)), types.EmptyResult
    )


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@pytest.fixture
async def found(tmp_path: Path) -> AsyncGenerator[Served]:
    async with served(tmp_path, tools=Ledger().tools()) as opened:
        yield opened


async def approve_all(service: Service) -> None:
    """What a person does in the terminal, for everybody's questions."""
    for found in (await service.list_suspensions(principal=None)).suspensions:
        await decide(service, found, Decision(approved=True), PERSON)


async def asked_by(found: Served, principal: str = "local") -> str:
    view = await start_as(found.warden.service, CONFIRMED, Requester(principal))
    assert view.status == "suspended"
    return view.thread_id


@requirement("subscriptions:updates", "subscriptions:suspension")
async def test_changes_by_another_process_are_sent(tmp_path: Path, era: Era) -> None:
    async with (
        served(tmp_path, tools=Ledger().tools(), on_disk=True) as one,
        served(tmp_path, tools=Ledger().tools(), on_disk=True) as other,
    ):
        thread_id, listener = await asked_by(one), Listener()
        [question] = (await one.warden.list_suspensions()).suspensions
        uris = (f"{EXECUTIONS}/{thread_id}", f"{SUSPENSIONS}/{question.suspension_id}", SUSPENSIONS)
        async with listener.subscribed(one.server, era, *uris):
            await approve_all(other.warden.service)
            for uri in uris:
                await listener.wait_for_updates(uri)


@requirement("subscriptions:owner")
async def test_nobody_receives_changes_of_other_principals(found: Served, era: Era) -> None:
    foreign, listener = await asked_by(found, "somebody else"), Listener()
    nobodys = f"{EXECUTIONS}/{'0' * 32}"
    async with listener.subscribed(found.server, era, f"{EXECUTIONS}/{foreign}", nobodys, SUSPENSIONS):
        await approve_all(found.warden.service)
        await asked_by(found, "somebody else")
        assert listener.uris == []
        own = await asked_by(found)
        await listener.wait_for_updates(SUSPENSIONS)
        assert own and set(listener.uris) == {SUSPENSIONS}


@requirement("subscriptions:updates")
async def test_an_older_client_can_subscribe_twice_and_unsubscribe(found: Served) -> None:
    thread_id, listener = await asked_by(found), Listener()
    uri = f"{EXECUTIONS}/{thread_id}"
    async with listener.subscribed(found.server, "legacy", uri, uri, SUSPENSIONS) as client:
        assert client.server_capabilities.resources is not None and client.server_capabilities.resources.subscribe
        await unsubscribe(client, uri)
        await unsubscribe(client, "test://never")
        await approve_all(found.warden.service)
        await listener.wait_for_updates(SUSPENSIONS)
        assert set(listener.uris) == {SUSPENSIONS}


@requirement("subscriptions:bounded")
async def test_subscriptions_of_a_connection_are_limited(tmp_path: Path) -> None:
    async with served(tmp_path) as found, Client(found.server, mode="legacy") as client:
        for number in range(MAX_TOPICS):
            await subscribe(client, f"{EXECUTIONS}/{number}")
        assert await code_of(subscribe(client, f"{EXECUTIONS}/one-more")) == types.INVALID_PARAMS
        await subscribe(client, f"{EXECUTIONS}/0")
    async with served(tmp_path) as found, Client(found.server, mode="auto") as client:
        many = [f"{EXECUTIONS}/{number}" for number in range(MAX_TOPICS + 10)]
        async with client.listen(resource_subscriptions=many) as stream:
            assert stream.honored.resource_subscriptions == many[:MAX_TOPICS]


@requirement("subscriptions:bounded")
async def test_a_subscribed_address_is_limited_in_length(found: Served, era: Era) -> None:
    listener, long = Listener(), "x:".ljust(MAX_URI_CHARS, "y")
    async with listener.subscribed(found.server, era, long) as client:
        longer = f"{long}y"
        asked = subscribe(client, longer) if era == "legacy" else listen_to(client, resourceSubscriptions=[longer])
        assert await code_of(asked) == types.INVALID_PARAMS


@requirement("subscriptions:bounded")
async def test_streams_of_a_principal_are_limited_and_leave_others_theirs(found: Served) -> None:
    async with Client(found.server, mode="auto", extensions=[TakesTasks()]) as client, AsyncExitStack() as streams:
        for _ in range(MAX_STREAMS):
            await streams.enter_async_context(client.listen(resource_subscriptions=[SUSPENSIONS]))
        assert await code_of(listen(client)) == types.INVALID_REQUEST
        found.server.identify = lambda: Caller("somebody else")
        async with client.listen(resource_subscriptions=[SUSPENSIONS]):
            found.server.identify = lambda: Caller("local")
            assert await code_of(listen(client)) == types.INVALID_REQUEST


@requirement("subscriptions:bounded")
async def test_a_filter_that_names_no_tasks_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as found, Client(found.server, mode="auto", extensions=[TakesTasks()]) as client:
        for task_ids in ("x", [1], [None], {"a": 1}, [["x"]]):
            with anyio.fail_after(60):
                assert await code_of(listen_to(client, taskIds=task_ids)) == types.INVALID_PARAMS, task_ids


@requirement("subscriptions:bounded")
async def test_a_slow_listener_misses_intermediate_states_and_no_last_one() -> None:
    async with warden(Ledger()) as w:
        service, bus, received = w.service, subscriptions.InMemorySubscriptionBus(), list[object]()
        view = await start_as(service, CONFIRMED, Requester("local"))
        watch = TopicWatcher(service, "local", bus, lambda event: True)
        [question] = view.suspensions
        one = Topic("suspension", question.suspension_id, "q")
        topics = {
            Topic("execution", view.thread_id, "e"),
            Topic("task", view.execution_id),
            Topic("suspensions", uri=SUSPENSIONS),
            one,
        }
        for topic in topics:
            assert await watch.add(topic)
        async with aclosing(watch.changes()) as changes, anyio.create_task_group() as tasks:
            tasks.start_soon(bus.publish, subscriptions.ToolsListChanged())
            with anyio.fail_after(60):
                assert await anext(changes) == subscriptions.ToolsListChanged()
            for _ in range(15):
                await approve_all(service)
                await start_as(service, CONFIRMED, Requester("local"))
            await bus.publish(subscriptions.ResourceUpdated("the end"))
            with anyio.fail_after(60):
                while subscriptions.ResourceUpdated("the end") not in received:
                    received.append(await anext(changes))
        assert set(received[:-1]) == topics and len(received) == len(topics) + 1


async def answered(service: Service, clock: ManualClock, question: Suspension) -> None:
    await approve_all(service)


async def revised(service: Service, clock: ManualClock, question: Suspension) -> None:
    edited = Decision(approved=True, modified_args={"to": "bob"})
    claimed = Authority(assurance="claimed", channel="mcp", principal="local")
    await decide(service, question, edited, claimed, principal="local", wait_seconds=0)


async def expired(service: Service, clock: ManualClock, question: Suspension) -> None:
    clock.advance(100)
    await service.tick()


async def withdrawn(service: Service, clock: ManualClock, question: Suspension) -> None:
    await service.cancel_execution(question.thread_id, principal="local")


@pytest.mark.parametrize("change", [answered, revised, expired, withdrawn])
@requirement("subscriptions:suspension")
async def test_a_subscriber_of_one_question_receives_its_changes_and_no_others(
    tmp_path: Path, era: Era, change: Callable[[Service, ManualClock, Suspension], Awaitable[None]]
) -> None:
    clock = ManualClock()
    settings = Settings(home=tmp_path, tools={"send": ToolSettings(answer_within_s=60.0)})
    tools = [*Ledger().tools(), sender(Ledger())]
    async with served(tmp_path, tools=tools, store=MemoryStore(clock), settings=settings) as found:
        service, listener = found.warden.service, Listener()
        asked = await start_as(service, plan(tool_step("a", "send", {"to": "ann"})), Requester("local"))
        other = await start_as(service, CONFIRMED, Requester("somebody else"))
        [question], [foreign] = asked.suspensions, other.suspensions
        uri, theirs = (f"{SUSPENSIONS}/{each.suspension_id}" for each in (question, foreign))
        async with listener.subscribed(found.server, era, theirs, uri, f"{SUSPENSIONS}/none") as client:
            await asked_by(found)
            await change(service, clock, question)
            await listener.wait_for_updates(uri)
            assert set(listener.uris) == {uri}
            if change is revised:
                [content] = (await client.read_resource(uri)).contents
                assert isinstance(content, types.TextResourceContents) and '"revision": 2' in content.text
            else:
                assert await code_of(client.read_resource(uri)) == types.INVALID_PARAMS


@requirement("subscriptions:suspension", "subscriptions:updates")
async def test_a_subscriber_is_told_of_a_vote_that_replaces_an_earlier_one(tmp_path: Path, era: Era) -> None:
    approvals = OperatorPolicy(critical="second", quorum=2)
    settings = Settings(home=tmp_path, tools={"erase": ToolSettings(risk="critical")}, policy=approvals)
    async with served(tmp_path, tools=Ledger().tools(), settings=settings) as found:
        erase = tool_step("a", "erase", {"ids": [{"$from": "item"}]}, forEach=[7, 8])
        [question] = (await start_as(found.warden.service, plan(erase), Requester("local"))).suspensions
        uris = (SUSPENSIONS, f"{SUSPENSIONS}/{question.suspension_id}")
        listener, ann = Listener(), Authority(assurance="human", channel="inbox", principal="ann")
        async with listener.subscribed(found.server, era, *uris):
            for times, row in enumerate((0, 1, 0), 1):
                vote = Decision(approved=True, content={"items": [row]})
                await decide(found.warden, question, vote, ann)
                for uri in uris:
                    await listener.wait_for_updates(uri, times)


@requirement("subscriptions:tools")
async def test_a_listing_without_a_change_is_silent_and_a_server_that_is_down_is_not(found: Served, era: Era) -> None:
    registry, listener, mine = found.warden.tools, Listener(), build_tool("mine")
    registry.replace_group("d", [mine])
    async with listener.subscribed(found.server, era, TOOLS, f"{TOOLS}/note", f"{TOOLS}/mine"):
        registry.replace_group("d", [mine])
        registry.mark_group("d", None)
        registry.mark_group("d", "it does not answer")
        await listener.wait_for_updates(f"{TOOLS}/mine")
        await listener.wait_for_updates(TOOLS)
        registry.replace_group("d", [])
        await listener.wait_for_updates(f"{TOOLS}/mine", 2)
        await listener.wait_for_updates(TOOLS, 2)
    assert set(listener.uris) == {TOOLS, f"{TOOLS}/mine"}
    assert len(listener.uris) == 4


@requirement("subscriptions:updates")
async def test_clients_are_told_when_a_file_comes_changes_or_goes(
    tmp_path: Path, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legacy, "LOOK_S", 0.0)
    monkeypatch.setattr(library, "FRESH_S", 0.0)
    listener = Listener()
    (tmp_path / "plans").mkdir()
    async with (
        served(tmp_path, tools=Ledger().tools()) as found,
        listener.subscribed(found.server, era, PLANS, has_lists=True) as client,
    ):

        async def read_names(change: int) -> list[str]:
            for uri in (PLANS, TOOL_LIST, PROMPT_LIST):
                await listener.wait_for_updates(uri, change)
            assert len(listener.uris) == 3 * change
            return [prompt.name for prompt in (await client.list_prompts()).prompts]

        capabilities = client.server_capabilities
        assert capabilities.tools is not None and capabilities.tools.list_changed
        assert capabilities.prompts is not None and capabilities.prompts.list_changed
        save_plan(tmp_path, "new", {"title": "Look", **NOTED})
        assert "new" in await read_names(1)
        save_plan(tmp_path, "new", {"title": "Look again", **NOTED})
        assert "new" in await read_names(2)
        (tmp_path / "plans" / "new.json").unlink()
        assert "new" not in await read_names(3)


@requirement("subscriptions:updates")
async def test_a_server_that_stops_ends_its_streams_in_order(tmp_path: Path) -> None:
    listening, heard = anyio.Event(), list[list[object]]()

    async def listen(url: str) -> None:
        async with Client(url) as client, client.listen(resource_subscriptions=[SUSPENSIONS]) as stream:
            listening.set()
            heard.append([event async for event in stream])

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, serving(Settings(home=tmp_path)) as url:
            tasks.start_soon(listen, url)
            await listening.wait()
    assert heard == [[]]

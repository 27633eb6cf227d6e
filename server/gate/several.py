"""Several servers behind one connection: the tools have the names of the catalogue, and everything else is as sent.

Lists are merged, and a call, a URI or the name of a prompt goes to the server that listed it. Two servers may use the
same id for a request, so these are written anew. A server that is out of reach is left out of the lists.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.server.gate import frames
from planwarden.server.gate.frames import Frame, RequestId
from planwarden.server.gate.relay import Relay
from planwarden.server.gate.tools import SharedTools
from planwarden.tools.downstream.listing_cache import MAX_PAGES

logger = logging.getLogger(__name__)

METHOD_NOT_FOUND = -32601
MAX_ENTRIES = 10_000
LISTS = {
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
    "prompts/list": ("prompts", "name"),
}
"""By method, the key of its entries, and what names one."""
ROUTES = {"resources/read": "uri", "resources/subscribe": "uri", "resources/unsubscribe": "uri", "prompts/get": "name"}
"""By method, the parameter that names what it is about."""
FOR_ALL = frozenset({"initialize", "server/discover", "logging/setLevel", "subscriptions/listen"})

Result = dict[str, JsonValue]


class Member(Protocol):
    """One server of the group."""

    relay: Relay

    async def open_tools(self) -> SharedTools:
        """Return its tools once the store is open. Raises `PlanwardenError`: it cannot be opened."""
        ...


class ServerGroup:
    """One host and several servers."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], tasks: TaskGroup) -> None:
        self._write = write
        self._tasks = tasks
        self.members: list[Member] = []
        self._waiting: dict[tuple[str, RequestId], tuple[anyio.Event, list[Frame]]] = {}
        """Requests that all servers answer."""
        self._asked: dict[str, tuple[Relay, RequestId]] = {}
        """By our own id, whose request the host has to answer."""
        self._last_id = 0
        self._owners: dict[str, Relay] = {}
        """By URI, template or name of a prompt."""

    async def handle_host_line(self, line: bytes) -> None:
        """Pass one message of the host on, or begin to answer it."""
        frame = await frames.read_or_refuse(line, self._write)
        if frame is None:
            return
        if frame.is_request:
            self._tasks.start_soon(self._answer, frame)
        elif isinstance(frame.method, str):
            for member in self.members:
                await member.relay.handle_host_line(line)
        elif isinstance(frame.id, str) and (question := self._asked.pop(frame.id, None)) is not None:
            await question[0].handle_host_line(replace(frame, id=question[1]).encode())

    def build_writer(self, member: Member, name: str) -> Callable[[bytes], Awaitable[None]]:
        """Return what takes the messages of a server for the host."""

        async def write(line: bytes) -> None:
            await self._handle_member_line(name, member.relay, line)

        return write

    async def _handle_member_line(self, name: str, relay: Relay, line: bytes) -> None:
        """Pass one message of a server on to the host."""
        frame = frames.read_frame(line)
        request_id = frame.request_id
        if frame.is_request and request_id is not None:
            self._last_id += 1
            own_id = f"{name}:{self._last_id}"
            self._asked[own_id] = relay, request_id
            await self._write(replace(frame, id=own_id).encode())
            return
        if frame.method == "notifications/cancelled":
            params = frames.read_value(frame.params if isinstance(frame.params, msgspec.Raw) else None)
            ids = [
                own_id
                for own_id, (asker, its_id) in self._asked.items()
                if asker is relay and isinstance(params, dict) and its_id == params.get("requestId")
            ]
            if isinstance(params, dict) and ids:
                del self._asked[ids[0]]
                await self._write(frames.build_notification("notifications/cancelled", {**params, "requestId": ids[0]}))
            return
        if request_id is not None and (waiting := self._waiting.get((name, request_id))) is not None:
            waiting[1].append(frame)
            waiting[0].set()
            return
        await self._write(line)

    async def _answer(self, frame: Frame) -> None:
        request_id = frame.request_id
        try:
            params = frames.read_value(frame.params if isinstance(frame.params, msgspec.Raw) else None)
            answer = await self._route(frame, params if isinstance(params, dict) else {})
        except PlanwardenError as error:
            answer = frames.build_error(request_id, frames.INVALID_PARAMS, error.message)
        if answer is not None:
            await self._write(answer)

    async def _route(self, frame: Frame, params: Result) -> bytes | None:
        """Return the answer, or None when a server gives it."""
        method, request_id = str(frame.method), frame.request_id
        if method == "ping":
            return frames.build_result(request_id, {})
        for member in self.members:
            member.relay.note_client(frame)
        if method in FOR_ALL:
            return await self._ask_all(frame)
        if method == "tools/list":
            return frames.build_result(request_id, self._complete({"tools": await self._list_tools()}))
        if method in LISTS:
            return frames.build_result(request_id, self._complete(await self._list(method)))
        if method == "tools/call":
            relay, remote_name = await self._find_tool(params.get("name"))
            # Only the name is written anew; what is judged and sent is read from this.
            raw = {**frame.read_params(), "name": msgspec.Raw(msgspec.json.encode(remote_name))}
            frame = replace(frame, params=msgspec.Raw(msgspec.json.encode(raw)))
        elif method in ROUTES or method == "completion/complete":
            reference = params.get("ref") if method == "completion/complete" else params
            name = reference.get(ROUTES.get(method, "uri")) if isinstance(reference, dict) else None
            name = reference.get("name") if name is None and isinstance(reference, dict) else name
            relay = await self._find_owner(str(name))
        else:
            text = f"{method[:64]} names no server, and there are several here; wrap the server alone"
            return frames.build_error(request_id, METHOD_NOT_FOUND, text)
        await relay.handle_host_line(frame.encode())
        return None

    def _complete(self, result: Result) -> Result:
        is_modern = any(member.relay.envelope for member in self.members)
        return {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **result} if is_modern else result

    async def _list_tools(self) -> list[JsonValue]:
        """Return the tools of all servers, each as its server sent it, but for its name."""
        tools: list[JsonValue] = []

        async def add(member: Member) -> None:
            try:
                own = await member.open_tools()
                await own.read()
            except ToolError as error:
                logger.warning("%s", error.message)
                return
            names = {tool.remote_name: tool.definition.name for tool in own.list_tools()}
            listed[member.relay.config.name] = [
                {**entry, "name": names[str(entry["name"])]}
                for entry in own.listing
                if isinstance(entry, dict) and entry.get("name") in names
            ]

        listed: dict[str, list[JsonValue]] = {}
        async with anyio.create_task_group() as tasks:
            for member in self.members:
                tasks.start_soon(add, member)
        for member in self.members:
            tools += listed.get(member.relay.config.name, [])
        return tools

    async def _find_tool(self, name: JsonValue) -> tuple[Relay, str]:
        for member in self.members:
            tool = (await member.open_tools()).find_by_name(str(name))
            if tool is not None:
                return member.relay, tool.remote_name
        # The server may not be listed yet, or be out of reach, which its relay says.
        for member in sorted(self.members, key=lambda member: -len(member.relay.config.slug)):
            prefix = f"{member.relay.config.slug}_"
            if str(name).startswith(prefix):
                own = await member.open_tools()
                await own.read()
                tool = own.find_by_name(str(name))
                return member.relay, str(name).removeprefix(prefix) if tool is None else tool.remote_name
        raise InvalidArguments(f"Unknown tool: {str(name)[:200]}")

    async def _list(self, method: str) -> Result:
        key, name_key = LISTS[method]
        merged: list[JsonValue] = []
        for member in self.members:
            params: Result = {}
            for _ in range(MAX_PAGES):
                try:
                    page = await member.relay.request(method, params)
                except ToolError as error:
                    # It is out of reach, or has none of these.
                    logger.info("%s", error.message)
                    break
                entries, cursor = page.get(key), page.get("nextCursor")
                for entry in (entries if isinstance(entries, list) else [])[: MAX_ENTRIES - len(merged)]:
                    merged.append(entry)
                    if isinstance(entry, dict):
                        self._owners.setdefault(str(entry.get(name_key)), member.relay)
                if not isinstance(cursor, str) or cursor == params.get("cursor"):
                    break
                params = {"cursor": cursor}
        return {key: merged}

    async def _find_owner(self, name: str) -> Relay:
        if name not in self._owners:
            self._owners.clear()
            for method in LISTS:
                await self._list(method)
        owner = self._owners.get(name)
        templates = (template for template in self._owners if "{" in template)
        fitting = [template for template in templates if name.startswith(template.partition("{")[0])]
        if owner is None and fitting:
            owner = self._owners[max(fitting, key=len)]
        if owner is None:
            raise InvalidArguments(f"no server lists {name[:200]!r}")
        return owner

    async def _ask_all(self, frame: Frame) -> bytes:
        """Return what the servers answer together; an error of one that can be reached is the error of all."""
        request_id = frame.request_id
        assert request_id is not None
        answers: list[Frame] = []

        async def ask(relay: Relay) -> None:
            key, (event, own) = (relay.config.name, request_id), (anyio.Event(), list[Frame]())
            self._waiting[key] = event, own
            try:
                await relay.handle_host_line(frame.encode())
                await event.wait()
            finally:
                del self._waiting[key]
            answers.extend(own)

        async with anyio.create_task_group() as tasks:
            for member in self.members:
                tasks.start_soon(ask, member.relay)
        results: list[Result] = []
        errors: list[JsonValue] = []
        for answer in answers:
            if isinstance(answer.result, msgspec.Raw) and isinstance(result := frames.read_value(answer.result), dict):
                results.append(result)
            elif isinstance(answer.error, msgspec.Raw):
                errors.append(frames.read_value(answer.error))
        reached = [error for error in errors if not isinstance(error, dict) or error.get("code") != frames.UNREACHABLE]
        if reached or not results:
            error: Result = {"jsonrpc": "2.0", "id": request_id, "error": (reached or errors or [None])[0]}
            return msgspec.json.encode(error) + b"\n"
        return frames.build_result(request_id, self._merge(results))

    def _merge(self, results: list[Result]) -> Result:
        merged: Result = {}
        for result in results:
            merged = _merge_objects(merged, result)
        if "capabilities" not in merged:
            return merged
        versions = [version for result in results if isinstance(version := result.get("protocolVersion"), str)]
        shared = [
            {str(version) for version in listed}
            for result in results
            if isinstance(listed := result.get("supportedVersions"), list)
        ]
        texts = [text for result in results if isinstance(text := result.get("instructions"), str)]
        more: Result = {"serverInfo": {"name": "planwarden gate", "version": "1"}}
        if versions:
            more["protocolVersion"] = min(versions)
        if shared:
            more["supportedVersions"] = list[JsonValue](sorted(shared[0].intersection(*shared)))
        if texts:
            more["instructions"] = "\n\n".join(texts)
        return {**merged, **more}


def _merge_objects(one: Result, other: Result) -> Result:
    """Return the members of both; a capability of one server is a capability of the group."""
    merged = dict(one)
    for key, value in other.items():
        mine = merged.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            merged[key] = _merge_objects(mine, value)
        elif not mine:
            merged[key] = value
    return merged

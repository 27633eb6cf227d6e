"""Puts several servers behind one connection. Their tools get the names that they have in planwarden's catalogue.

Lists are merged; apart from these names, their entries stay as the servers sent them. A request about a tool, a URI or
a prompt goes to the server that listed it. If no server listed a URI, the request goes to the first server with the URI
in an answer. Servers that are out of reach or too slow are left out of the lists.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidArguments, ToolError, UnknownThread
from planwarden.agent.common.struct import JsonValue
from planwarden.server.gate import frames
from planwarden.server.gate.frames import Frame
from planwarden.server.gate.relay import Host, RefusedRequest, Relay, is_about_task
from planwarden.server.gate.tools import GatedTools

logger = logging.getLogger(__name__)

METHOD_NOT_FOUND = -32601
MAX_ENTRIES = 10_000
MAX_LINKS = 1_000
MAX_LINK_CHARS = 2_000
MAX_LINKED_VALUES = 100_000
"""How many values of one answer are searched for URIs."""
LISTS = {
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
    "prompts/list": ("prompts", "name"),
}
"""By listing method: the key of the entries in its result, and the key of the name in an entry."""
ROUTED = frozenset({"resources/read", "resources/subscribe", "resources/unsubscribe", "prompts/get"})
"""Methods about one URI or one prompt."""
FOR_ALL = frozenset({"initialize", "server/discover", "logging/setLevel", "subscriptions/listen"})
NO_ANSWER: JsonValue = {"code": frames.UNREACHABLE, "message": "no server answered in time"}

Answer = TypeVar("Answer")
Result = dict[str, JsonValue]


class ServerGroup(Host):
    """One host and several servers."""

    names_servers = True

    def __init__(self, write: Callable[[bytes], Awaitable[None]], tasks: TaskGroup) -> None:
        super().__init__(write, tasks)
        self._owners: dict[str, dict[str, Relay]] = {}
        """By listing method, the server of each URI, template or prompt."""
        self._links: dict[Relay, dict[str, None]] = {}
        """By server, the latest `MAX_LINKS` URIs that its answers named first."""
        self._silent: set[Relay] = set()
        """The servers that did not answer in time when they were last asked."""

    async def route(self, frame: Frame) -> bytes:
        method, request_id = str(frame.method), frame.request_id
        params = frames.read_members(frame.params)
        if method == "ping":
            return frames.build_result(request_id, {})
        if method in FOR_ALL:
            return await self._ask_all(frame)
        if method == "tools/list":
            return frames.build_result(request_id, self._complete({"tools": await self._list_tools()}))
        if method in LISTS:
            return frames.build_result(request_id, self._complete(await self._list(method)))
        if method == "tools/call":
            relay, remote_name = await self._find_tool(str(params.get("name")))
            # Only the name is replaced. The gate judges and sends these parameters.
            raw = {**frame.read_params(), "name": msgspec.Raw(msgspec.json.encode(remote_name))}
            answer = await relay.answer(replace(frame, params=msgspec.Raw(msgspec.json.encode(raw))))
            return self._keep_links(relay, answer)
        if method in ROUTED or method == "completion/complete":
            reference = params.get("ref") if method == "completion/complete" else params
            owner = await self._find_owner(frames.read_members(reference))
            return self._keep_links(owner, await owner.answer(frame))
        if is_about_task(frame):
            return await self._find_task(frame)
        text = f"{method[:64]} names no server, and there are several here; wrap the server alone"
        return frames.build_error(request_id, METHOD_NOT_FOUND, text)

    def _complete(self, result: Result) -> Result:
        modern: Result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if self.client.envelope else {}
        return {**modern, **result}

    async def _list_tools(self) -> list[JsonValue]:
        """Return the tools of all servers, unchanged except for their names. Raises like `Relay.open`."""

        async def read(relay: Relay) -> list[JsonValue]:
            own: GatedTools = (await relay.open()).tools
            await own.read()
            names = {tool.remote_name: tool.definition.name for tool in own.tools.values()}
            return [
                {**entry, "name": names[name]}
                for entry in own.listing
                if isinstance(entry, dict) and isinstance(name := entry.get("name"), str) and name in names
            ]

        # Without a store, no server has tools, and the host is told why.
        await self.relays[0].open()
        return [tool for _, tools in await self._ask_each(read) for tool in tools]

    async def _ask_each(
        self, ask: Callable[[Relay], Awaitable[Answer]], *, has_limit: bool = True, without: Collection[Relay] = ()
    ) -> list[tuple[Relay, Answer]]:
        """Ask all servers at once and return their answers. Leave out servers that are out of reach or slow."""
        answers: dict[Relay, Answer] = {}

        async def add(relay: Relay) -> None:
            try:
                with anyio.fail_after(relay.config.settings.start_timeout_s if has_limit else None):
                    answers[relay] = await ask(relay)
                self._silent.discard(relay)
            except TimeoutError:
                self._silent.add(relay)
                logger.warning("server %r did not answer in time", relay.config.name)
            except ToolError as error:
                # A server without prompts or resources often refuses to list them.
                logger.log(logging.INFO if isinstance(error, RefusedRequest) else logging.WARNING, error.message)

        async with anyio.create_task_group() as tasks:
            for relay in self.relays:
                if relay not in without:
                    tasks.start_soon(add, relay)
        return [(relay, answers[relay]) for relay in self.relays if relay in answers]

    async def _find_tool(self, name: str) -> tuple[Relay, str]:
        for relay in self.relays:
            tool = (await relay.open()).tools.find_by_name(name)
            if tool is not None:
                return relay, tool.remote_name
        # A server may not have listed its tools yet. If it is out of reach, `read` raises an error with its name.
        for relay in sorted(self.relays, key=lambda relay: -len(relay.config.slug)):
            prefix = f"{relay.config.slug}_"
            if name.startswith(prefix):
                own: GatedTools = (await relay.open()).tools
                await own.read()
                tool = own.find_by_name(name)
                return relay, name.removeprefix(prefix) if tool is None else tool.remote_name
        raise InvalidArguments(f"Unknown tool: {name[:200]}")

    async def _find_task(self, frame: Frame) -> bytes:
        """Return the answer of the server that has the task. Raises `UnknownThread`: no server has it."""
        for relay in self.relays:
            with suppress(UnknownThread):
                return self._keep_links(relay, await relay.answer(frame))
        raise UnknownThread("Failed to retrieve task: Task not found")

    async def _list(self, method: str, without: Collection[Relay] = ()) -> Result:
        key, name_key = LISTS[method]
        listings = await self._ask_each(lambda relay: relay.read_list(method, key, MAX_ENTRIES), without=without)
        merged = [(relay, entry) for relay, entries in listings for entry in entries]
        # A server that did not answer this time keeps the entries that it listed before.
        listed = dict(listings)
        owners = {name: relay for name, relay in self._owners.get(method, {}).items() if relay not in listed}
        for relay, entry in merged:
            if isinstance(entry, dict):
                owners.setdefault(str(entry.get(name_key)), relay)
        self._owners[method] = owners
        return {key: [entry for _, entry in merged]}

    def _keep_links(self, relay: Relay, answer: bytes) -> bytes:
        """Remember the URIs that the answer of the server names, and return the answer unchanged."""
        values = [frames.read_value(frames.read_frame(answer).result)] if b'"uri"' in answer else []
        links = self._links.setdefault(relay, {})
        # The loop appends to `values` while it goes through them.
        for value in islice(values, MAX_LINKED_VALUES):
            values += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            uri = value.get("uri") if isinstance(value, dict) else None
            if isinstance(uri, str) and len(uri) <= MAX_LINK_CHARS and self._find_linked(uri) is None:
                links[uri] = None
                if len(links) > MAX_LINKS:
                    del links[next(iter(links))]
        return answer

    def _find_linked(self, uri: str) -> Relay | None:
        return next((relay for relay, links in self._links.items() if uri in links), None)

    async def _find_owner(self, reference: Result) -> Relay:
        """Return the server that first listed the prompt, URI or template, else the server that first named the URI."""
        key = "uri" if "uri" in reference else "name"
        name, methods = str(reference.get(key)), [method for method in LISTS if LISTS[method][1].startswith(key)]
        if not any(name in self._owners.get(method, {}) for method in methods):
            # If a server listed or named it before, do not wait again for servers that were silent.
            is_known = self._find_listed(name, methods) or self._find_linked(name)
            for method in methods:
                await self._list(method, without=tuple(self._silent) if is_known else ())
        owner = self._find_listed(name, methods) or (self._find_linked(name) if key == "uri" else None)
        if owner is None:
            raise InvalidArguments(f"no server lists {name[:200]!r}")
        return owner

    def _find_listed(self, name: str, methods: Sequence[str]) -> Relay | None:
        """Return the server that listed the name, else the server with the longest template that the name may fit."""
        owners = {
            listed: relay for method in reversed(methods) for listed, relay in self._owners.get(method, {}).items()
        }
        templates = [listed for listed in owners if "{" in listed and name.startswith(listed.partition("{")[0])]
        return owners.get(name if name in owners else max(templates, key=len, default=name))

    async def _ask_all(self, frame: Frame) -> bytes:
        """Return the merged answers; the first error if a server sent an error, or if no server is in reach."""

        async def ask(relay: Relay) -> Frame:
            return frames.read_frame(await relay.answer(frame))

        # A handshake has its own time limit, and the host ends a subscription.
        answers = await self._ask_each(ask, has_limit=frame.method not in ("initialize", "subscriptions/listen"))
        results: list[Result] = []
        errors: list[JsonValue] = []
        for _, answer in answers:
            if isinstance(result := frames.read_value(answer.result), dict):
                results.append(result)
            else:
                errors.append(frames.read_value(answer.error))
        reached = [error for error in errors if not isinstance(error, dict) or error.get("code") != frames.UNREACHABLE]
        if reached or not results:
            error: Result = {"jsonrpc": "2.0", "id": frame.request_id, "error": (reached or errors or [NO_ANSWER])[0]}
            return msgspec.json.encode(error) + b"\n"
        return frames.build_result(frame.request_id, _merge(results))


def _merge(results: list[Result]) -> Result:
    merged: Result = {}
    for result in results:
        merged = _merge_objects(merged, result)
    if "capabilities" not in merged:
        return merged
    versions = [version for result in results if isinstance(version := result.get("protocolVersion"), str)]
    supported = [
        {str(version) for version in listed}
        for result in results
        if isinstance(listed := result.get("supportedVersions"), list)
    ]
    texts = [text for result in results if isinstance(text := result.get("instructions"), str)]
    merged["serverInfo"] = {"name": "planwarden gate", "version": "1"}
    if versions:
        merged["protocolVersion"] = min(versions)
    if supported:
        merged["supportedVersions"] = list[JsonValue](sorted(supported[0].intersection(*supported)))
    if texts:
        merged["instructions"] = "\n\n".join(texts)
    return merged


def _merge_objects(one: Result, other: Result) -> Result:
    """Return the members of both objects, because a capability of one server is a capability of the group."""
    merged = dict(one)
    for key, value in other.items():
        mine = merged.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            merged[key] = _merge_objects(mine, value)
        elif not mine:
            merged[key] = value
    return merged

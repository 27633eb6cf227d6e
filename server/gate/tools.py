"""Puts the tools of the wrapped server into the catalogue, and sends their calls through the relay. Before each call
that planwarden makes, the tools are listed again: so a changed definition is noticed even if the server announces none.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial

import anyio
import anyio.to_thread
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from planwarden.agent.common.artifact import MAX_ARTIFACT_BYTES, MAX_ARTIFACT_VALUES
from planwarden.agent.common.canonical import digest, exceeds, is_larger
from planwarden.agent.common.errors import OutcomeUnknown, StaleDefinition, ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import CallContext
from planwarden.server.gate import frames
from planwarden.server.gate.frames import Client
from planwarden.server.gate.relay import LargeResult, RefusedRequest, Relay
from planwarden.server.settings.configuration import Settings
from planwarden.tools.base import Tool, define
from planwarden.tools.downstream.call import IDEMPOTENCY_KEY, CallRound, Outcome
from planwarden.tools.downstream.connection import GatedCaller
from planwarden.tools.downstream.elicitation import BadElicitation
from planwarden.tools.downstream.listing import (
    FOLDER,
    MAX_LISTING_BYTES,
    MAX_TOOLS,
    DownstreamTool,
    build_tools,
    load_listing,
    normalize_listing,
    save_listing,
)
from planwarden.tools.downstream.results import read_whole_result
from planwarden.tools.downstream.servers import DownstreamServers
from planwarden.tools.registry import Registry

HOST_ANSWERS_S = 30.0
"""How long a host may take to answer a question of the server. After that the inbox asks the question, and the call no
longer has a time limit."""


class GatedTools:
    """The tools of one wrapped server."""

    def __init__(
        self,
        relay: Relay,
        registry: Registry,
        settings: Settings,
        on_listing: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Take `on_listing`, which gets the digest of each new listing after the listing is stored in the home."""
        self._on_listing = on_listing
        self._relay = relay
        self._registry = registry
        self._settings = settings
        self.tools: dict[str, DownstreamTool] = {}
        """The tools that can be used, by the server's own names for them."""
        self.listing: list[JsonValue] = []
        """The list of tools as the server sent it last."""
        self._is_listed = False
        self._lock = anyio.Lock()
        self._waiting: dict[str, list[Client]] = {}
        """By execution, the clients whose calls wait for the execution."""
        self.large: dict[str, Raw] = {}
        """By execution, a result that is too large to be stored, for the calls that wait for the execution."""
        self._gated_callers: dict[str, GatedCaller] = {}
        """By thread, the function that makes the call of the thread in place of the connection that plans use."""
        self._meta: dict[str, dict[str, JsonValue]] = {}
        """By thread, what the host's call has in `_meta`."""

    @contextmanager
    def wait_for(self, execution_id: str, client: Client) -> Generator[None]:
        """Keep a result of the execution that is too large to be stored until the block ends."""
        clients = self._waiting.setdefault(execution_id, [])
        clients.append(client)
        try:
            yield
        finally:
            clients.remove(client)
            if not clients:
                del self._waiting[execution_id]
                self.large.pop(execution_id, None)

    def note_change(self) -> None:
        """Make the next call list the tools again, because they may have changed."""
        self._is_listed = False

    async def find(self, remote_name: str) -> DownstreamTool | None:
        """Return the server's tool of this name, or None. Raises `ToolError`: the server cannot be asked."""
        if not self._is_listed or remote_name not in self.tools:
            await self.read()
        return self.tools.get(remote_name)

    def explain_missing(self, remote_name: str) -> str:
        """Return why no tool of this name can be called."""
        entries = [entry for entry in self.listing if isinstance(entry, dict) and entry.get("name") == remote_name]
        _, notes = build_tools(self._relay.config, entries[:1], other_tools=())
        return notes[0] if notes else f"Unknown tool: {remote_name[:200]}"

    def find_by_name(self, name: str) -> DownstreamTool | None:
        """Return the tool that has this name in the catalogue; None if there is none."""
        return next((tool for tool in self.tools.values() if tool.definition.name == name), None)

    async def load(self) -> None:
        """Load the tools that are stored in the home, because questions of an earlier gate may concern them."""
        await self._take(await anyio.to_thread.run_sync(load_listing, self._settings.home / FOLDER, self._relay.config))

    async def read(self) -> None:
        """List the tools. Raises `ToolError`: the server cannot be asked, or its listing is too large."""
        async with self._lock:
            self._is_listed = True
            try:
                listing = await self._relay.read_list("tools/list", "tools", MAX_TOOLS)
                if is_larger(listing, MAX_LISTING_BYTES):
                    name = self._relay.config.name
                    raise ToolError(f"the listing of server {name!r} is larger than {MAX_LISTING_BYTES} bytes")
            except BaseException:
                self._is_listed = False
                raise
            await self._take(listing)

    async def _take(self, listing: list[JsonValue] | None) -> None:
        if listing is None or (listing == self.listing and self.tools):
            return
        self.tools = {tool.remote_name: tool for tool in await self._register(listing)}
        self.listing = listing
        if self._on_listing is not None:
            await self._on_listing(digest(listing))

    async def _register(self, listing: list[JsonValue]) -> list[DownstreamTool]:
        """Put the tools into the catalogue and the home, and return them."""
        config = self._relay.config
        # If another process runs a call of this gate, it reads the listing from the home.
        await anyio.to_thread.run_sync(save_listing, self._settings.home / FOLDER, config, listing)
        slugs = [each.slug for each in self._settings.servers.configs]
        listed, _ = await anyio.to_thread.run_sync(lambda: build_tools(config, listing, other_tools=(), slugs=slugs))
        tools = [replace(tool, definition=define(self._settings.apply_to(tool.definition))) for tool in listed]
        self._registry.replace_group(config.name, map(self._build_tool, tools))
        return tools

    def claim(self, thread_id: str, meta: dict[str, JsonValue]) -> None:
        """Make this gate send the call of the thread, even if plans have their own connection to the server. The call
        carries `meta` in `_meta`.
        """
        self._gated_callers.setdefault(thread_id, self.call)
        self._meta[thread_id] = meta

    def release(self, thread_id: str) -> None:
        """Stop claiming the call of the thread."""
        self._meta.pop(thread_id, None)
        if self._gated_callers.get(thread_id) == self.call:
            del self._gated_callers[thread_id]

    def close(self) -> None:
        """Stop claiming the calls of all threads, because the host is gone."""
        for thread_id in list(self._gated_callers):
            self.release(thread_id)

    def _build_tool(self, tool: DownstreamTool) -> Tool:
        return Tool(tool.definition, partial(self.call, tool), partial(self._resume, tool), schema=tool.input)

    async def _resume(
        self, tool: DownstreamTool, payload: JsonValue, decision: JsonValue, context: CallContext
    ) -> Outcome:
        return await self._go_on(tool, CallRound.model_validate(payload).add_answer(decision), context)

    async def call(self, tool: DownstreamTool, arguments: dict[str, JsonValue], context: CallContext) -> Outcome:
        """Send the call that planwarden decided to make. Raises the same errors as `_send`."""
        return await self._send(tool, CallRound(arguments=arguments), context)

    async def _go_on(self, tool: DownstreamTool, call_round: CallRound, context: CallContext) -> Outcome:
        """Return the server's next question for a person, or send the call again if all questions are answered."""
        while (question := call_round.open_question()) is not None:
            key, elicitation = question
            answer = await self._ask_host(call_round.questions[key], context)
            if answer is None:
                return elicitation.suspend(self._relay.config.name, call_round.model_dump(mode="json"))
            call_round = call_round.model_copy(update={"answers": {**call_round.answers, key: answer}})
        return await self._send(tool, call_round, context)

    async def _ask_host(self, question: JsonValue, context: CallContext) -> dict[str, JsonValue] | None:
        """Return the answer of a host that waits for this call; None if no host waits, can be asked, or answers. A host
        of a newer revision can be asked only in the result of its call, so the question goes to the inbox.
        """
        clients = self._waiting.get(context.execution_id, ())
        can_ask = any(client.can_elicit and not client.envelope for client in clients)
        if not can_ask or not isinstance(question, dict):
            return None
        with anyio.move_on_after(HOST_ANSWERS_S), suppress(ToolError):
            return await self._relay.host.ask("elicitation/create", question)
        return None

    async def _send(self, tool: DownstreamTool, call_round: CallRound, context: CallContext) -> Outcome:
        """Send the call that planwarden decided to make, with the answers to the server's earlier questions.

        Raises:
            ToolError: the call was not sent, was refused or failed; or its result is lost, but a repetition is safe.
            OutcomeUnknown: the call was sent and may have happened.
            StaleDefinition: the server now defines the tool differently; nothing was sent.
        """
        name = tool.definition.name
        await self._check(tool)
        await context.confirm_lease()
        meta = {**self._meta.get(context.thread_id, {}), IDEMPOTENCY_KEY: context.idempotency_key}
        params: dict[str, JsonValue] = {"name": tool.remote_name, "arguments": call_round.arguments, "_meta": meta}
        if call_round.answers:
            params["inputResponses"] = dict[str, JsonValue](call_round.answers)
        if call_round.state is not None:
            params["requestState"] = call_round.state
        try:
            result = await self._relay.request("tools/call", params)
            if result.get("resultType") == "input_required":
                return await self._go_on(tool, call_round.read_next(result), context)
            if exceeds(result, MAX_ARTIFACT_VALUES, MAX_ARTIFACT_BYTES):
                raise LargeResult("it is too large", Raw(msgspec.json.encode(result)))
            return read_whole_result(name, result)
        except LargeResult as error:
            return self._pass_large(name, error, context)
        except BadElicitation as error:
            raise ToolError(f"{name} was not run: {error}") from None
        except RefusedRequest as error:
            raise ToolError(f"{name} was refused by its server: {error.message}") from None
        except OutcomeUnknown as error:
            raise (error if tool.definition.effect == "effect" else ToolError(error.message)) from None

    async def _check(self, tool: DownstreamTool) -> None:
        """Raise, as `_send` does, unless the server still defines the tool in the same way."""
        name = tool.definition.name
        try:
            await self.read()
        except ToolError as error:
            # The listing failed before anything of the call was sent.
            raise ToolError(f"{name} was not run: {error.message}", retryable=True) from None
        current = self._registry.get(name)
        if current is None:
            raise ToolError(f"{name} is no longer offered; nothing was sent", retryable=True)
        if current.digest != tool.definition.digest:
            raise StaleDefinition(f"{name} changed before it was called; nothing was sent")

    def _pass_large(self, name: str, large: LargeResult, context: CallContext) -> JsonValue:
        """Keep the result for waiting calls; return a text for others. Raises `ToolError` for errors and lost
        results."""
        text = f"{name} ran, and its result is not stored: {large.message}. Calls that waited for it have it."
        if large.raw is None:
            raise ToolError(f"{name} ran, and its result is lost: {large.message}")
        if context.execution_id in self._waiting:
            self.large[context.execution_id] = large.raw
        if frames.read_value(frames.read_object(large.raw).get("isError")) is True:
            raise ToolError(text)
        return text


class SharedTools(GatedTools):
    """The tools of a server of planwarden.json. Plans call these tools too, over another connection."""

    def __init__(self, relay: Relay, registry: Registry, settings: Settings, downstream: DownstreamServers) -> None:
        super().__init__(relay, registry, settings)
        self._downstream = downstream
        self._gated_callers = downstream.connection(relay.config.name).gated_callers

    async def _register(self, listing: list[JsonValue]) -> list[DownstreamTool]:
        normal = await anyio.to_thread.run_sync(normalize_listing, listing)
        return await self._downstream.register_listing(self._relay.config, normal)

"""Fakes with behaviour: tools that write to a ledger, a model out of reach, and stores with hooks.

No test tells them what to answer; each does a small, real thing. The clock that tests set is
`planwarden.storage.clock.ManualClock`, the store in memory is `planwarden.storage.sqlite.store.MemoryStore`.
"""

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import JsonValue

from planwarden.agent.common.errors import ModelError, StoreError
from planwarden.agent.core.prompts import Prompt
from planwarden.agent.core.replies import Reply
from planwarden.agent.core.tool import CallContext, Effect, Risk, ToolDefinition
from planwarden.agent.ports.environment import Clock
from planwarden.agent.ports.model import AskCaller, Model
from planwarden.agent.ports.store import Append, Lease, Lookups, Store
from planwarden.tools.base import Tool, define
from tests.harness.ledger import Ledger

Result = TypeVar("Result")


def recording_tool(
    ledger: Ledger,
    name: str,
    *,
    effect: Effect = "effect",
    risk: Risk = "read",
    properties: dict[str, JsonValue] | None = None,
    before: Callable[[], Awaitable[None]] | None = None,
    after: Callable[[], Awaitable[None]] | None = None,
    filler_bytes: int = 0,
) -> Tool:
    """Returns a tool that writes one line to the ledger and returns `{"done": NAME, **arguments}` and a filler, if any.

    `before` and `after` are awaited around the line; a test stops a call there.
    """

    async def call(arguments: dict[str, JsonValue], context: CallContext) -> object:
        if before is not None:
            await before()
        value: dict[str, JsonValue] = {"done": name, **arguments}
        if filler_bytes:
            value["filler"] = "x" * filler_bytes
        ledger.write("done", key=context.idempotency_key, tool=name, effect=effect, arguments=arguments, value=value)
        if after is not None:
            await after()
        return value

    schema: dict[str, JsonValue] = {"type": "object", "properties": properties or {}}
    definition = ToolDefinition(
        name=name, description=f"Does {name}.", input_schema=schema, effect=effect, risk=risk, timeout_s=None
    )
    return Tool(define(definition), call)


class UnreachableModel:
    """The model `inner`, whose provider is out of reach for the first `failures` attempts at every prompt."""

    def __init__(self, inner: Model, *, failures: float = 1, asked_s: float | None = None) -> None:
        self.failures = failures
        self.asked_s = asked_s
        """How long the provider asks to wait."""
        self.attempts: Counter[tuple[str, str | None, int]] = Counter()
        """By purpose, step and number of the replies before."""
        self._inner = inner

    async def reply(self, prompt: Prompt, tools: Sequence[ToolDefinition]) -> Reply | AskCaller:
        key = (prompt.purpose, prompt.step_id, len(prompt.used_sources))
        self.attempts[key] += 1
        if self.attempts[key] <= self.failures:
            raise ModelError(
                f"the provider cannot be reached ({self.attempts[key]})", retryable=True, asked_s=self.asked_s
            )
        return await self._inner.reply(prompt, tools)


class Crash(BaseException):
    """The process dies here. Nothing may handle this as an error."""


@dataclass(frozen=True, slots=True)
class StoreCall:
    number: int
    """1 for the first call on this store."""
    call: str
    when: Literal["before", "after"]


Hook = Callable[[StoreCall], Awaitable[None]]
_BASE: Any = object
"""Type checkers do not see the calls that are made from the port."""


class WatchedStore(_BASE):
    """Wraps a store and awaits a hook before and after each call, all of which are made from the port.

    Errors of the hook reach the caller.
    """

    def __init__(self, inner: Store, hook: Hook | None = None) -> None:
        self.inner = inner
        self.calls: list[str] = []
        """Names of the calls so far."""
        self._hook = hook

    async def call(self, call: str, made: Callable[[], Awaitable[Result]]) -> Result:
        self.calls.append(call)
        number = len(self.calls)
        if self._hook is not None:
            await self._hook(StoreCall(number, call, "before"))
        result = await made()
        if self._hook is not None:
            await self._hook(StoreCall(number, call, "after"))
        return result

    @property
    def clock(self) -> Clock:
        return self.inner.clock

    async def wait_for_changes(self, since: int, timeout_s: float) -> None:
        await self.inner.wait_for_changes(since, timeout_s)

    async def close(self) -> None:
        await self.inner.close()


def _watch(name: str) -> Callable[..., Awaitable[object]]:
    async def call(self: WatchedStore, *arguments: object, **named: object) -> object:
        return await self.call(name, lambda: getattr(self.inner, name)(*arguments, **named))

    return call


for _name, _member in (*vars(Lookups).items(), *vars(Store).items()):
    if inspect.iscoroutinefunction(_member) and _name not in vars(WatchedStore):
        setattr(WatchedStore, _name, _watch(_name))


class CrashingStore(WatchedStore):
    """Dies before or after call number `at`; every later call fails too."""

    def __init__(self, inner: Store, *, at: int, when: Literal["before", "after"]) -> None:
        super().__init__(inner, self._die)
        self.is_dead = False
        self._at = at
        self._when = when

    async def _die(self, moment: StoreCall) -> None:
        if self.is_dead or (moment.number == self._at and moment.when == self._when):
            self.is_dead = True
            raise Crash(f"{moment.when} {moment.call}, store call {moment.number}")


class RefusingStore(WatchedStore):
    """A store whose appends fail as long as `refuses` returns true."""

    def __init__(self, inner: Store, refuses: Callable[[Append], bool]) -> None:
        super().__init__(inner)
        self.refused = 0
        self._refuses = refuses

    async def append(self, append: Append) -> Lease | None:
        if self._refuses(append):
            self.refused += 1
            raise StoreError("the disk is full")
        return await self.call("append", lambda: self.inner.append(append))

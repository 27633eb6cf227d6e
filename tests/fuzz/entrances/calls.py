"""Calls of MCP tools over HTTP without a socket: plans, arguments of every tool, and answers to open questions."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.corpus import CAPABILITIES, CONTENTS, DECISIONS, FORM_ANSWERS, OPTIONS, PLANS, Document, tool_calls
from tests.fuzz.entrance import Opener, check_rpc
from tests.fuzz.mutation import Mutator
from tests.fuzz.office import Office, build_headers, build_meta, office, read_answer

ACCEPTED = 202
Made = tuple[str, Document, Document]
"""Tool, arguments, and other parameters."""


@dataclass
class Calls:
    """Sends what `make` makes, as a call of a tool."""

    office: Office
    make: Callable[[Mutator, "Calls"], Made]
    states: list[tuple[Document, str]] = field(default_factory=list[tuple[Document, str]])
    """Calls that were answered with a form, with the state that came with it."""

    async def send(self, mutator: Mutator) -> str:
        tool, arguments, more = self.make(mutator, self)
        params = {"name": tool, "arguments": arguments, **more, "_meta": build_meta(mutator.pick(CAPABILITIES))}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        mutator.sent = data = mutator.encode(body)
        response = await self.office.post(data, build_headers("tools/call", tool))
        if response.status_code == ACCEPTED:
            # Without an id it is a notification.
            return "status 202"
        answer = read_answer(response)
        result: Document = (answer or {}).get("result", {})
        if "requestState" in result:
            self.states = [*self.states[-20:], (arguments, result["requestState"])]
        return check_rpc(answer)

    async def check_alive(self) -> None:
        await self.office.check_alive()

    def pick_ids(self, mutator: Mutator) -> Document:
        """The ids of an open question, now and then of different ones or of none."""
        questions = self.office.questions or [{"threadId": "none", "suspensionId": "none"}]
        first, second = mutator.pick(questions), mutator.pick(questions)
        other = second if mutator.chance(0.05) else first
        return {"threadId": first["threadId"], "suspensionId": other["suspensionId"]}


def make_plan(mutator: Mutator, _: Calls) -> Made:
    arguments: Document = {"plan": mutator.mutate(mutator.pick(PLANS), PLANS)}
    if mutator.chance(0.2):
        arguments["options"] = mutator.mutate(OPTIONS)
    return "execute_plan", arguments, {}


def make_arguments(mutator: Mutator, calls: Calls) -> Made:
    ids = calls.pick_ids(mutator)
    listed = tool_calls(ids["threadId"], ids["suspensionId"])
    tool, arguments = mutator.pick(listed)
    changed = mutator.mutate(arguments, [given for _, given in listed])
    more = {"_meta": {"planwarden/chain": mutator.odd_value()}} if mutator.chance(0.05) else {}
    return (mutator.odd_text() if mutator.chance(0.02) else tool), changed, more


def make_answer(mutator: Mutator, calls: Calls) -> Made:
    if calls.states and mutator.chance(0.4):
        arguments, state = mutator.pick(calls.states)
        if mutator.chance(0.1):
            state = mutator.damage(state.encode()).decode("utf-8", "replace")
        responses = mutator.mutate(mutator.pick(FORM_ANSWERS), FORM_ANSWERS)
        return "resume_execution", arguments, {"inputResponses": responses, "requestState": state}
    question = mutator.pick(calls.office.questions)
    ids = {"threadId": question["threadId"], "suspensionId": question["suspensionId"], "waitSeconds": 0.1}
    if mutator.chance(0.05):
        ids |= calls.pick_ids(mutator)
    usual = "submit_answer" if question["addressee"] == "caller" else "resume_execution"
    tool = mutator.pick(("submit_answer", "resume_execution", "app_decide")) if mutator.chance(0.1) else usual
    if tool == "resume_execution":
        return tool, {**ids, "decision": mutator.mutate(mutator.pick(DECISIONS), DECISIONS)}, {}
    content = mutator.mutate(mutator.pick(CONTENTS), [*CONTENTS, *PLANS])
    return tool, {**ids, "content": content, **({"nonce": mutator.odd_text()} if tool == "app_decide" else {})}, {}


def opening(make: Callable[[Mutator, Calls], Made]) -> Opener:
    @asynccontextmanager
    async def opened(home: Path) -> AsyncGenerator[Calls]:
        async with office(home) as found:
            yield Calls(found, make)

    return opened

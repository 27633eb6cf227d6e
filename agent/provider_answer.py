"""From a provider's response to a reply: bounded, with nothing in it that is not JSON.

A call whose arguments are no JSON object is not a call with other arguments: it and everything after it are dropped,
because what comes later may depend on it. When nothing usable is left, the answer has a fault, said in words that the
model can act on, and is asked for once more.
"""

import json
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pydantic import JsonValue
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from planwarden.agent import events as ev
from planwarden.agent.canonical import canonical_json, check_depth, read_json
from planwarden.agent.errors import InvalidArguments, PlanwardenError
from planwarden.agent.ports import Reply
from planwarden.agent.provider_request import PLAN_TOOL, Question
from planwarden.agent.replies import CALLS_KEY, MARKER_START, MAX_CALLS, MAX_CONTENT_CHARS, PLAN_KEYS, embedded_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    reply: Reply
    fault: str | None = None
    """Why it is of no use, or None."""
    is_refusal: bool = False
    """The provider stopped it; asking again would not help."""

    def spent(self, earlier: "Answer") -> "Answer":
        """This answer, with the tokens of an earlier one added."""
        tokens = replace(
            self.reply,
            input_tokens=self.reply.input_tokens + earlier.reply.input_tokens,
            output_tokens=self.reply.output_tokens + earlier.reply.output_tokens,
        )
        return replace(self, reply=tokens)


def read_answer(response: ModelResponse, question: Question) -> Answer:
    """The reply, and what is wrong with it, if anything is."""
    content = _text(response)
    usage = response.usage
    reply = Reply(content=content, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    parts = list(islice((part for part in response.parts if isinstance(part, ToolCallPart)), MAX_CALLS))
    if response.finish_reason == "content_filter" and not parts:
        return Answer(reply=reply, fault="its content filter stopped it", is_refusal=True)
    is_cut = response.finish_reason == "length"
    if question.prompt.purpose == "plan":
        return _plan(reply, parts, is_cut=is_cut)
    if question.prompt.purpose == "step":
        return _step(reply, parts, question, is_cut=is_cut)
    return Answer(reply=reply, fault=None if content else "it was empty")


def _plan(reply: Reply, parts: list[ToolCallPart], *, is_cut: bool) -> Answer:
    call = next((part for part in parts if part.tool_name == PLAN_TOOL), None)
    if call is None:
        return Answer(reply=reply, fault=_fault_in_text(reply.content, *PLAN_KEYS, is_cut=is_cut))
    try:
        return Answer(reply=replace(reply, plan=_arguments(call.args)))
    except PlanwardenError as error:
        return Answer(reply=reply, fault=_broken("the plan", error, is_cut=is_cut))


def _step(reply: Reply, parts: list[ToolCallPart], question: Question, *, is_cut: bool) -> Answer:
    calls: list[ev.ProposedCall] = []
    fault: str | None = None
    for part in parts:
        name = question.names.get(part.tool_name, part.tool_name)
        try:
            calls.append(ev.ProposedCall(tool_name=_clean(name), arguments=_arguments(part.args)))
        except PlanwardenError as error:
            fault = _broken(f"the arguments of {_clean(name)[:64]}", error, is_cut=is_cut)
            break
    if calls:
        return Answer(reply=replace(reply, calls=tuple(calls)))
    if fault is not None:
        note = f"[a call was dropped: {fault}]"
        return Answer(reply=replace(reply, content=f"{reply.content}\n{note}" if reply.content else note), fault=fault)
    if question.wants_json:
        return Answer(reply=reply, fault=_fault_in_text(reply.content, CALLS_KEY, is_cut=is_cut))
    return Answer(reply=reply, fault=None if reply.content else "it was empty")


def _text(response: ModelResponse) -> str | None:
    """What the model wrote for others to read; its private reasoning is not part of it."""
    pieces: list[str] = []
    length = 0
    for part in response.parts:
        if isinstance(part, TextPart) and length < MAX_CONTENT_CHARS:
            pieces.append(part.content[:MAX_CONTENT_CHARS])
            length += len(pieces[-1])
    return _clean("".join(pieces)[:MAX_CONTENT_CHARS]).strip() or None


def _arguments(given: str | dict[str, Any] | None) -> dict[str, JsonValue]:
    """Raises `PlanwardenError` unless they are a JSON object of bounded depth."""
    if not given:
        return {}
    if not isinstance(given, str):
        check_depth(given)
    value = read_json(given if isinstance(given, str) else canonical_json(given))
    if not isinstance(value, dict):
        raise InvalidArguments("not a JSON object")
    try:
        # Escapes can spell halves of characters, which neither a store nor a tool could encode.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidArguments("a string in it is not valid Unicode") from None
    return value


def _fault_in_text(content: str | None, *keys: str, is_cut: bool) -> str | None:
    """A JSON object that was begun but cannot be read; prose is no fault but an answer that does not count."""
    found = embedded_json(content, *keys) if content else None
    if content is None or (found is not None and any(key in found for key in keys)):
        return None
    if MARKER_START not in content and not any(f'"{key}"' in content for key in keys):
        return None
    return "its JSON was cut off" if is_cut else "its JSON was cut off or is not valid"


def _clean(text: str) -> str:
    """Halves of characters replaced: nothing could encode them."""
    return text.encode("utf-8", "replace").decode()


def _broken(what: str, error: PlanwardenError, *, is_cut: bool) -> str:
    return f"{what}: cut off" if is_cut else f"{what}: {error.message[:200]}"

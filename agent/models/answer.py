"""Turns a provider's response into a reply of bounded size, in which all arguments are JSON.

If a call's arguments are not a JSON object, that call and all later calls are dropped, because the later ones may
depend on it. If nothing usable remains, the answer has a `fault` that tells the model why, and
`ProviderModel` asks once more.
"""

import json
from itertools import islice
from typing import cast

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from planwarden.agent.common.canonical import canonical_json, check_depth, read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError
from planwarden.agent.core.execution import events as ev
from planwarden.agent.core.plan.plan import MAX_CALLS_PER_STEP, STEPS_KEYS
from planwarden.agent.core.replies import CALLS_KEY, MARKER_START, MAX_CONTENT_CHARS, Reply, find_calls, find_json
from planwarden.agent.models.request import PLAN_TOOL, REVISE_TOOL, ProviderRequest

_DAMAGE = {"length": "it was cut off", "error": "the call in it could not be parsed"}
"""What happened to a response that is not whole, by its finish reason."""


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    reply: Reply
    fault: str | None = None
    """Why the reply cannot be used, or None."""
    is_refusal: bool = False
    """Whether the provider stopped the answer; asking again would not help then."""

    def add_earlier(self, earlier: "ModelAnswer") -> "ModelAnswer":
        """Return this answer with the earlier tokens added, and with the earlier `revise` if it has none itself."""
        reply = replace(
            self.reply,
            revise=self.reply.revise if self.reply.revise is not None else earlier.reply.revise,
            input_tokens=self.reply.input_tokens + earlier.reply.input_tokens,
            output_tokens=self.reply.output_tokens + earlier.reply.output_tokens,
        )
        return replace(self, reply=reply)


def read_answer(response: ModelResponse, request: ProviderRequest) -> ModelAnswer:
    """Return the reply, and its fault if it has one."""
    # The text that the model wrote, without its private reasoning.
    own_text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    text, usage = _replace_surrogates(own_text).strip(), response.usage
    content = text[:MAX_CONTENT_CHARS] or None
    reply = Reply(content=content, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
    parts = list(islice((part for part in response.parts if isinstance(part, ToolCallPart)), MAX_CALLS_PER_STEP))
    if response.finish_reason == "content_filter" and not parts:
        return ModelAnswer(reply=reply, fault="its content filter stopped it", is_refusal=True)
    damage = _DAMAGE.get(response.finish_reason or "")
    if request.can_revise:
        try:
            reply = replace(reply, revise=_read_revision(parts))
        except PlanwardenError as error:
            return ModelAnswer(reply=reply, fault=f"the arguments of {REVISE_TOOL}: {damage or error.message[:200]}")
        parts = [part for part in parts if part.tool_name != REVISE_TOOL]
    if request.prompt.purpose == "plan":
        return _read_plan(reply, parts, text, damage)
    if request.prompt.purpose == "step":
        calls: list[tuple[str, object]] = [
            (request.names.get(part.tool_name, part.tool_name), part.args) for part in parts
        ]
        calls = calls or [(call.tool_name, call.arguments) for call in find_calls(text)]
        if calls:
            return _read_calls(reply, calls, damage)
    if request.needs_json:
        return ModelAnswer(reply=reply, fault=_find_fault(text, damage, CALLS_KEY))
    silent = "it was empty" if reply.revise is None else "it revised the plan, but did not answer the step in text"
    return ModelAnswer(reply=reply, fault=None if text else damage or silent)


def _read_revision(parts: list[ToolCallPart]) -> JsonValue:
    """Return the operations of all `revise_plan` calls, or None. Raises `PlanwardenError` if a call has no list."""
    operations: list[JsonValue] = []
    revising = [part for part in parts if part.tool_name == REVISE_TOOL]
    for part in revising:
        listed = _read_arguments(part.args).get("operations")
        if not isinstance(listed, list):
            raise InvalidArguments("'operations' is not a list")
        operations.extend(listed)
    return operations or None


def _read_plan(reply: Reply, parts: list[ToolCallPart], text: str, damage: str | None) -> ModelAnswer:
    arguments = next((part.args for part in parts if part.tool_name == PLAN_TOOL), None)
    if arguments is None:
        arguments = find_json(text, *STEPS_KEYS)
        if arguments is None or not arguments.keys() & set(STEPS_KEYS):
            return ModelAnswer(reply=reply, fault=_find_fault(text, damage, *STEPS_KEYS))
    try:
        return ModelAnswer(reply=replace(reply, plan=_read_arguments(arguments)))
    except PlanwardenError as error:
        return ModelAnswer(reply=reply, fault=f"the plan: {damage or error.message[:200]}")


def _read_calls(reply: Reply, raw_calls: list[tuple[str, object]], damage: str | None) -> ModelAnswer:
    calls: list[ev.ProposedCall] = []
    for own_name, arguments in raw_calls:
        name = _replace_surrogates(own_name)
        try:
            calls.append(ev.ProposedCall(tool_name=name, arguments=_read_arguments(arguments)))
        except PlanwardenError as error:
            if calls:
                break
            fault = f"the arguments of {name[:64]}: {damage or error.message[:200]}"
            note = f"[a call was dropped: {fault}]"
            content = f"{reply.content}\n{note}" if reply.content else note
            return ModelAnswer(reply=replace(reply, content=content), fault=fault)
    return ModelAnswer(reply=replace(reply, calls=tuple(calls)))


def _read_arguments(arguments: object) -> dict[str, JsonValue]:
    """Return the arguments. Raises `PlanwardenError` unless they are a JSON object of bounded depth."""
    if not arguments:
        return {}
    if isinstance(arguments, str):
        value = read_json(arguments)
    else:
        parsed = cast(JsonValue, arguments)
        check_depth(parsed)
        value = read_json(canonical_json(parsed))
    if not isinstance(value, dict):
        raise InvalidArguments("not a JSON object")
    try:
        # Escapes in JSON can produce lone surrogates, which neither a store nor a tool could encode.
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidArguments("a string in it is not valid Unicode") from None
    return value


def _find_fault(text: str, damage: str | None, *keys: str) -> str | None:
    """Return why the JSON in the text cannot be used or, for an empty text, what damaged it; None for prose."""
    if not text:
        return damage
    is_begun = MARKER_START in text or any(f'"{key}"' in text for key in keys)
    return (damage or "its JSON is not valid") if is_begun else None


def _replace_surrogates(text: str) -> str:
    """Return the text without lone surrogates, which nothing could encode."""
    return text.encode("utf-8", "replace").decode()

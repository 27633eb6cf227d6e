"""Asks the person at the client through a form or a link, in old and new protocol revisions, and reads the answer.

A form always has `decision` (approve or reject, required, no default), so accepting an empty or pre-filled form decides
nothing. In the fields `arg_NAME`, a person may edit arguments that are shown whole. A `requestInput` adds its own
fields if they are flat and primitive (https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation).
Clients show only a few lines of a form's message (see `compact_message`); a question that does not fit into these lines
is not asked in a form. The same question always has the same form, rendered from the stored suspension. The accepted
content of a form has the assurance `client` and no more.

From revision 2026-07-28 on, a call returns the question, and the client repeats the call with the answer. In older
revisions the server pushes the question while the call waits. Declining or closing a question decides nothing, because
unattended hosts do so too. Accepting a link means "agreed to open it"; the person decides on the page, outside of MCP,
and we read the decision from the store. The sealed request state holds only ids, a digest and the mode, so repeating an
answer changes nothing (https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/mrtr).
"""

import json
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, Literal

import anyio
import msgspec
from mcp.shared.exceptions import MCPError
from mcp.types import (
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp.types.version import is_version_at_least
from pydantic import JsonValue, ValidationError

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.canonical import is_same_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError
from planwarden.agent.common.schema import Schema
from planwarden.server.api.service import Service
from planwarden.server.mcp.compact_message import LINE_CELLS, build_compact_facts, build_compact_message, build_headline
from planwarden.server.mcp.requests import AnyContext, wait_until_decided
from planwarden.server.views.card import Card
from planwarden.server.views.escaping import count_hidden, escape_text, hash_text, is_shown_whole
from planwarden.server.views.fields import Field, build_field, build_fields, find_title, read_flat_fields
from planwarden.server.views.question_text import hash_question
from planwarden.server.views.suspension import Suspension

INPUT_REQUIRED_SINCE = "2026-07-28"
URL_MODE_SINCE = "2025-11-25"
RESPONSE_KEY = "decision"
MAX_EDITABLE = 20
MAX_FORM_CHARS = 8_000
MAX_LABEL_CHARS = LINE_CELLS
"""How long a label, a choice or a default may be: one line, which no client cuts. A longer text rules out a form."""
DECISION, REASON, ARGUMENT = "decision", "reason", "arg_"

_KEYWORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"type", "title", "description", "default", "enum", "format", "minLength", "maxLength"}),
    "number": frozenset({"type", "title", "description", "default", "minimum", "maximum"}),
    "integer": frozenset({"type", "title", "description", "default", "minimum", "maximum"}),
    "boolean": frozenset({"type", "title", "description", "default"}),
}
"""Keywords that clients know, by type of field. The check of the whole answer covers all other keywords."""
_FORMATS = frozenset({"email", "uri", "date", "date-time"})
_LABELS = frozenset({"title", "description"})
_UNSEEN = frozenset(
    {"exclusiveMaximum", "exclusiveMinimum", "format", "maxLength", "minLength", "multipleOf", "pattern"}
)
"""Keywords that a form may leave out: they only restrict the answer. Any other unknown keyword rules out a form."""
_SECRET = re.compile("(?i:pass(?:word|phrase|code)|secret|credential|(?:api|access|private)[ _-]?key|token)s?(?![a-z])")
"""Words in a field's name, title or description that say that the field asks for a secret."""

_JSON_TYPES: dict[type[object], str] = {bool: "boolean", int: "integer", float: "number", str: "string"}
_DECISION_FIELD: dict[str, JsonValue] = {"type": "string", "title": "Decision", "enum": ["approve", "reject"]}
_REASON_FIELD: dict[str, JsonValue] = {"type": "string", "title": "Reason (optional)"}

Mode = Literal["form", "url"]
ElicitationForm = ElicitRequestFormParams
ElicitationLink = ElicitRequestURLParams
Elicitation = ElicitationForm | ElicitationLink
"""A form for the client to show, or a link for it to open."""


class QuestionReference(msgspec.Struct, frozen=True, rename="camel"):
    """What the sealed request state says about the question that the client showed."""

    suspension_id: str
    digest: str
    """The digest of the revision that was shown."""
    mode: Mode = "form"


Answer = tuple[QuestionReference, ElicitResult]
"""A question and the client's answer to it; if the question was a link, only the action of the answer counts."""


def build_link(suspension: Suspension) -> ElicitationLink | None:
    """Return a link to the page where a person decides this question; None while no inbox runs. The link holds the
    question's id but no secret."""
    url, card = suspension.how_to_answer.inbox_url, suspension.card
    if url is None:
        return None
    lines = build_compact_facts(card) or [*build_headline(card), "It does not fit here; all of it is on the page."]
    message = "\n".join([*lines, "A person decides on the page; accepting here only opens it."])
    return ElicitationLink(message=message, url=url)


def build_elicitation(
    suspension: Suspension, modes: Collection[Mode], form: Callable[[Suspension], ElicitationForm | None] | None = None
) -> Elicitation | None:
    """Return a form, or else a link to the question's page; None if the client can show neither."""
    elicitation = (form or build_form)(suspension) if "form" in modes else None
    return elicitation or (build_link(suspension) if "url" in modes else None)


def build_form(suspension: Suspension) -> ElicitationForm | None:
    """Return the question as a form; None if it needs more assurance than a form has, or does not fit into one."""
    message, schema = build_compact_message(suspension.card), build_form_schema(suspension.card)
    if message is None or schema is None:
        return None
    if suspension.card.form is None:
        schema = type_numbers_as_text(schema)
    return ElicitationForm(message=message, requested_schema=schema)


def build_form_schema(card: Card) -> dict[str, Any] | None:
    """Return the JSON Schema of the form; None if the question needs more assurance, or its fields do not fit."""
    is_decidable = card.question.needs == "client" and not card.question.undecidable
    if not is_decidable:
        return None
    if card.question.form is not None:
        fields = _build_answer_fields(card.question.form)
    else:
        fields = {REASON: _REASON_FIELD, **_build_argument_fields(card)}, list[str]()
    if fields is None:
        return None
    properties, required = fields
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {DECISION: _DECISION_FIELD, **properties},
        "required": [DECISION, *required],
    }
    return schema if len(json.dumps(schema)) <= MAX_FORM_CHARS else None


def type_numbers_as_text(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the form with a text field in place of each number field. `read_decision` reads the numbers exactly.

    JavaScript rounds long numbers. Codex 0.169.0 shows no fields of a form that asks for a number.
    """
    return {**schema, "properties": {name: _as_text_field(name, field) for name, field in schema["properties"].items()}}


def compute_form_digest(suspension: Suspension) -> str:
    """Return the SHA-256 of the form's message, or of the question's text if no form fits; the decision records it."""
    message = build_compact_message(suspension.card)
    return hash_question(suspension.card) if message is None else hash_text(message)


def read_decision(suspension: Suspension, content: dict[str, Any] | None) -> Decision | None:
    """Return the decision of an accepted form, or None if it has none.

    Raises:
        InvalidArguments: a field has a value of the wrong type.
    """
    values = {name: value for name, value in (content or {}).items() if value is not None}
    verdict = values.pop(DECISION, None)
    if verdict not in ("approve", "reject"):
        return None
    if suspension.answer_schema is not None:
        content = _read_texts(build_fields(suspension.answer_schema), values)
        return Decision(approved=True, content=content) if verdict == "approve" else Decision(approved=False)
    reason = values.get(REASON)
    given_reason = reason if isinstance(reason, str) and reason.strip() else None
    if verdict == "reject":
        return Decision(approved=False, reason=given_reason)
    return Decision(approved=True, reason=given_reason, modified_args=_apply_edits(suspension.card, values))


def _build_argument_fields(card: Card) -> dict[str, dict[str, JsonValue]]:
    """Return one optional field for each primitive argument that is shown whole, with its value as the default."""
    fields: dict[str, dict[str, JsonValue]] = {}
    for argument in card.call.arguments if card.call is not None and card.may_edit else ():
        name, value = argument.name, argument.value.value
        kind = _JSON_TYPES.get(type(value))
        if kind is not None and is_shown_whole(value) and not count_hidden(name) and len(name) <= 64:
            title = _name_title(argument.schema_title, name)
            fields[ARGUMENT + name] = {"type": kind, "title": title or name, "default": value}
    return fields if len(fields) <= MAX_EDITABLE else {}


def _as_text_field(name: str, field: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if field["type"] not in ("number", "integer"):
        return field
    rest = {key: field[key] for key in ("description",) if key in field}
    default = {"default": json.dumps(field["default"])} if "default" in field else {}
    return {"type": "string", "title": f"{field.get('title', name)} (a number)", **rest, **default}


def _read_texts(fields: Iterable[Field], values: dict[str, Any]) -> dict[str, JsonValue]:
    """Return the values; a text in a field of another type becomes a value of that type if it can be read."""
    by_name = {field.name: field for field in fields}
    return {
        name: by_name[name].read_typed(value) if name in by_name and isinstance(value, str) else value
        for name, value in values.items()
    }


def _apply_edits(card: Card, values: dict[str, Any]) -> dict[str, JsonValue] | None:
    """Return all arguments with the edits; None if nothing changed. Raises `InvalidArguments`."""
    fields = _build_argument_fields(card)
    typed = {name: value for name, value in values.items() if name in fields}
    edits = _read_texts([build_field(name, fields[name]) for name in typed], typed)
    faults = Schema({"type": "object", "properties": {**fields}}).find_faults(edits)
    if faults:
        raise InvalidArguments(f"the form's edited arguments are not usable: {'; '.join(faults[:5])}")
    arguments = card.question.arguments or {}
    merged = {**arguments, **{name.removeprefix(ARGUMENT): value for name, value in edits.items()}}
    return None if is_same_json(merged, arguments) else merged


def _build_answer_fields(schema: dict[str, JsonValue]) -> tuple[dict[str, JsonValue], list[str]] | None:
    """Return a flat form's fields, with escaped labels, and its required names; None unless all are shown whole."""
    fields, required = read_flat_fields(schema), schema.get("required", [])
    if fields is None or not isinstance(required, list):
        return None
    parts = {field.name: part for field in fields if (part := _draw_answer_field(field)) is not None}
    names = [name for name in required if isinstance(name, str) and name in parts]
    is_whole = len(parts) == len(fields) and len(names) == len(required) and DECISION not in parts
    return ({**parts}, names) if is_whole else None


def _asks_for_secret(field: Field) -> bool:
    """Return whether the field asks for a secret, as its format or words say; a form may not have such a field."""
    words = (field.name, *(str(field.schema.get(label, "")) for label in _LABELS))
    is_text = field.schema.get("type") == "string"
    return field.schema.get("format") == "password" or (is_text and any(map(_SECRET.search, words)))


def _draw_answer_field(field: Field) -> dict[str, JsonValue] | None:
    keywords = _KEYWORDS[str(field.schema["type"])]
    if field.schema.keys() - keywords - _UNSEEN or not _is_plain(field.name) or _asks_for_secret(field):
        return None
    drawn = {key: value for key, value in field.schema.items() if key in keywords}
    labels = {key: escape_text(str(drawn[key])) for key in _LABELS & drawn.keys()}
    if any(len(label) > MAX_LABEL_CHARS for label in labels.values()):
        return None
    if drawn.get("format") not in _FORMATS:
        drawn.pop("format", None)
    choices, default = drawn.get("enum", []), drawn.get("default", "")
    is_listable = isinstance(choices, list) and all(isinstance(choice, str) and _is_plain(choice) for choice in choices)
    if not is_listable or (isinstance(default, str) and not _is_plain(default)):
        return None
    title = _name_title(find_title(field.name, {**drawn, **labels}), field.name)
    return {**drawn, **labels, **({} if title is None else {"title": title})}


def _name_title(title: str, name: str) -> str | None:
    """Return a schema's title with the name of its field; None without a title, or if the two do not fit."""
    label = f"{escape_text(title)} ({name})" if title else ""
    return label if 0 < len(label) <= MAX_LABEL_CHARS else None


def _is_plain(text: str) -> bool:
    """Return True for a text that fits into one line and hides nothing."""
    return len(text) <= MAX_LABEL_CHARS and not count_hidden(text)


def find_modes(capabilities: ClientCapabilities | None) -> frozenset[Mode]:
    """Return the modes that the client declares; elicitation without a mode means forms."""
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None:
        return frozenset()
    if elicitation.url is None:
        return frozenset({"form"})
    return frozenset({"url"}) if elicitation.form is None else frozenset({"form", "url"})


def find_usable_modes(context: AnyContext) -> frozenset[Mode]:
    """Return the modes that the client declares and in which a question can reach it now."""
    if not (_is_at_least(context, INPUT_REQUIRED_SINCE) or context.session.can_send_request):
        return frozenset()
    modes = find_modes(context.client_capabilities)
    return modes if _is_at_least(context, URL_MODE_SINCE) else modes - {"url"}


def read_reference(context: AnyContext) -> QuestionReference | None:
    """Return the question that this call's request state names, whether answered or not; None if it names none."""
    try:
        return msgspec.json.decode(context.request_state or "", type=QuestionReference)
    except msgspec.DecodeError:
        # Another version of planwarden may have sealed a state with other fields.
        return None


def read_answer(context: AnyContext) -> Answer | None:
    """Return this call's answer to the question of an earlier call; None if it has none. Also return None if the client
    does not declare the mode in the state, because it cannot have shown the question.
    """
    reference, result = read_reference(context), (context.input_responses or {}).get(RESPONSE_KEY)
    if reference is None or not isinstance(result, ElicitResult):
        return None
    return (reference, result) if reference.mode in find_modes(context.client_capabilities) else None


async def elicit(
    service: Service, suspension: Suspension, elicitation: Elicitation, context: AnyContext
) -> Answer | InputRequiredResult | None:
    """Ask, and return the answer; None if the client failed or another channel decided. From revision
    `INPUT_REQUIRED_SINCE` on, return a result that makes the client ask."""
    reference = QuestionReference(suspension.suspension_id, suspension.digest, elicitation.mode)
    if _is_at_least(context, INPUT_REQUIRED_SINCE):
        request, state = ElicitRequest(params=elicitation), msgspec.json.encode(reference).decode()
        return InputRequiredResult(input_requests={RESPONSE_KEY: request}, request_state=state)
    result = await _push_until_decided(service, suspension, elicitation, context)
    return None if result is None else (reference, result)


async def notify_decided(suspension_id: str, context: AnyContext) -> None:
    """Tell a client of an older protocol revision to stop waiting, because the person has decided on the page."""
    if not _is_at_least(context, INPUT_REQUIRED_SINCE):
        await context.session.send_elicit_complete(suspension_id, context.request_id)


async def _push_until_decided(
    service: Service, suspension: Suspension, elicitation: Elicitation, context: AnyContext
) -> ElicitResult | None:
    """Return the client's answer; None when the client failed, or when another channel decided first."""
    answer: ElicitResult | None = None
    session, request_id, message = context.session, context.request_id, elicitation.message
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            with suppress(PlanwardenError):
                await wait_until_decided(service, suspension, context)
                tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        # A client that fails has decided nothing.
        with suppress(MCPError, ValidationError):
            if isinstance(elicitation, ElicitationForm):
                answer = await session.elicit_form(message, elicitation.requested_schema, request_id)
            else:
                answer = await session.elicit_url(message, elicitation.url, suspension.suspension_id, request_id)
        tasks.cancel_scope.cancel()
    return answer


def _is_at_least(context: AnyContext, version: str) -> bool:
    return context.protocol_version is not None and is_version_at_least(context.protocol_version, version)

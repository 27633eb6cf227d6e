"""The question of a caller that has no plan, as a plan of one step that asks it."""

from planwarden.agent.common.canonical import check_depth, exceeds
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.schema import Schema
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.binding.bindings import Path, leave_out_bindings
from planwarden.server.api.limits import check_text
from planwarden.tools.builtin.human import MAX_ADDRESSEE_CHARS

STEP_ID = "ask"
MAX_MESSAGE_CHARS = 4_000
MAX_VALUES = 5_000
MAX_BYTES = 64 * 1024
"""Of the details, and of the form."""


def build_question_plan(
    message: str, details: JsonValue, form: JsonValue, addressee: str | None
) -> dict[str, JsonValue]:
    """Return the plan that asks for a confirmation, or with a form for an answer that fits it.

    Raises:
        InvalidArguments: a text is empty, the form is not a JSON Schema of an object, or something is not JSON.
        LimitExceeded: a text, the details or the form are too large.
    """
    check_text(message, "message", MAX_MESSAGE_CHARS)
    if addressee is not None:
        check_text(addressee, "addressee", MAX_ADDRESSEE_CHARS)
    for name, value in (("details", details), ("form", form)):
        _check_value(value, name)
    arguments: dict[str, JsonValue] = {"action" if form is None else "message": message}
    if form is not None:
        _check_form(form)
        arguments["form"] = form
    arguments |= {name: value for name, value in (("details", details), ("addressee", addressee)) if value is not None}
    tool = "displayConfirmation" if form is None else "requestInput"
    step: JsonValue = {
        "id": STEP_ID,
        "description": message,
        "requiredTools": [tool],
        "toolCalls": [{"toolName": tool, "arguments": arguments}],
    }
    return {"todoList": [step]}


def _check_value(value: JsonValue, name: str) -> None:
    check_depth(value)
    if exceeds(value, MAX_VALUES, MAX_BYTES):
        raise LimitExceeded(f"'{name}' has more than {MAX_VALUES} values or {MAX_BYTES // 1024} KiB")
    bound: list[Path] = []
    leave_out_bindings(value, bound)
    if bound:
        raise InvalidArguments(f"'{name}' has a '$from' or '$text', which only plans have; send the values themselves")


def _check_form(form: JsonValue) -> None:
    if not isinstance(form, dict) or form.get("type") != "object":
        raise InvalidArguments("'form' must be a JSON Schema with type 'object' and a property for each answer")
    try:
        Schema(form)
    except ValueError as error:
        raise InvalidArguments(f"'form' is not a usable JSON Schema: {str(error).splitlines()[0]}") from None

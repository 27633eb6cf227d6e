"""Reads the options of a call, and combines them with those of its thread and of the server."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec.structs import fields, replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.form import EXAMPLES, describe, list_pydantic_faults
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.execution import events as ev
from planwarden.server.settings.faults import Table

MAX_PROMPT_CHARS = 20_000
_OPTIONS = frozenset(entry.name for entry in fields(ev.Options)) - {"explicit"}
PER_RUN_OPTIONS = frozenset({"rehearse", "review"})
"""Options that hold only for one execution. Its thread does not keep them."""

Prompt = Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]


class LoopOptions(Table):
    """Options of a step's loop, which both a call and the operator's file may set."""

    model_config = ConfigDict(alias_generator=to_camel)
    max_iterations: Annotated[int, Field(ge=1, le=100)] | None = None
    """The most model replies in one step; enforcement prompts do not count."""
    taef_max_retries: Annotated[int, Field(ge=0, le=20)] | None = None
    """The most enforcement prompts in one step."""
    tool_mode: Literal["strict", "flexible"] | None = None
    """`strict` shows a step the schemas of its required tools; `flexible` adds one line about every other tool."""


class Budgets(Table):
    model_config = LoopOptions.model_config
    model_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens that models may use, prompts and answers together."""
    tool_calls: Annotated[int, Field(ge=1)] | None = None
    """Calls of tools."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Seconds during which the execution runs; waiting for answers does not count."""


class Prompts(Table):
    model_config = LoopOptions.model_config
    planning: Prompt | None = None
    """Replaces the instructions for planning."""
    execution: Prompt | None = None
    """Replaces the instructions for a step."""
    synthesis: Prompt | None = None
    """Replaces the instructions for the final text."""


class OptionsIn(LoopOptions):
    """`options` of run_goal, create_plan and execute_plan."""

    wait_seconds: Annotated[float, Field(ge=0, le=300)] | None = None
    """How long this call waits before it answers `running`; 0 answers as soon as the execution is durable."""
    synthesize: bool | None = None
    """Whether a model writes the final text; `run_goal` does so by default, `execute_plan` does not."""
    budgets: Budgets | None = None
    """Limits; an execution that reaches one is `incomplete`."""
    prompts: Prompts | None = None
    """Replaces instructions for the model."""
    rehearse: bool | None = None
    """Only make calls that read; record what the others would have done, and ask nobody. Holds for one execution."""
    review: Literal["person"] | None = None
    """Before the first step, a person approves, edits or rejects the plan itself. Holds for one execution."""


def _list_keys(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(map(to_camel, model.model_fields))


KNOWN_KEYS = {
    "options": _list_keys(OptionsIn),
    "options.budgets": _list_keys(Budgets),
    "options.prompts": _list_keys(Prompts),
}


def read_options(document: JsonValue | Mapping[str, JsonValue]) -> dict[str, object]:
    """Return the given options under the field names of `ev.Options`.

    Raises:
        InvalidArguments: a key is unknown, a value is wrong, or two options exclude each other; the message says which.
    """
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise InvalidArguments(
            f"options must be an object, not {describe(document)}; send {EXAMPLES['options']}; "
            f"it takes {', '.join(KNOWN_KEYS['options'])}"
        )
    try:
        parsed = OptionsIn.model_validate(dict(document))
    except ValidationError as error:
        problems = list_pydantic_faults(error, "options", KNOWN_KEYS)
        raise InvalidArguments("; ".join(problems[:10]), details={"problems": list[JsonValue](problems)}) from None
    if parsed.rehearse and parsed.review:
        raise InvalidArguments("a rehearsal asks nobody, so options.review does not go with options.rehearse")
    options: dict[str, Any] = parsed.model_dump(exclude_none=True)
    for group, prefix in (("budgets", "budget"), ("prompts", "prompt")):
        options.update({f"{prefix}_{name}": value for name, value in options.pop(group, {}).items()})
    return options


def combine_options(server: ev.Options, thread: ev.Options | None, call: Mapping[str, object]) -> ev.Options:
    """Return the options: those of the call override the explicit ones of its thread, which override the server's."""
    inherited = {name: getattr(thread, name) for name in thread.explicit} if thread is not None else {}
    explicit = {**inherited, **call}
    options = {name: explicit[name] for name in explicit if name in _OPTIONS}
    return replace(server, **options, explicit=tuple(sorted(explicit.keys() - PER_RUN_OPTIONS)))


def reject_run_options(call: Mapping[str, object]) -> None:
    """Raise `InvalidArguments` if a call that only plans has options that concern a run."""
    for name in PER_RUN_OPTIONS & call.keys():
        raise InvalidArguments(f"create_plan runs nothing, so send options.{name} to execute_plan with its threadId")


def continue_run(begun: ev.Options, options: ev.Options, call: Mapping[str, object]) -> ev.Options:
    """Return the `options` for continuing an execution, with `rehearse` and `review` as they were when it began.

    Raises:
        InvalidArguments: the call wants to make a rehearsal a real run, or the other way round, or to add a review.
    """
    if call.get("rehearse", begun.rehearse) != begun.rehearse:
        now = "a rehearsal" if begun.rehearse else "a real run"
        raise InvalidArguments(f"the execution is {now} and goes on as one; send the plan itself to start another one")
    if call.get("review", begun.review) != begun.review:
        raise InvalidArguments("the execution has begun without a review; send the plan itself to have it reviewed")
    return replace(options, rehearse=begun.rehearse, review=begun.review)

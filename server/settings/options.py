"""Reads the options of a call; `combining.py` combines them with those of thread and server."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.form import EXAMPLES, describe, list_pydantic_faults
from planwarden.agent.common.suggestions import did_you_mean

MAX_PROMPT_CHARS = 20_000
MAX_PATH_CHARS = 200
"""Of a key, in a message."""


class Budgets(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    modelTokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens that models may use, prompts and answers together."""
    toolCalls: Annotated[int, Field(ge=1)] | None = None
    """Calls of tools."""
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds during which the execution runs; waiting for answers does not count."""


class Prompts(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    planning: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)] | None = None
    """Replaces the instructions for planning."""
    execution: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)] | None = None
    """Replaces the instructions for a step."""
    synthesis: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)] | None = None
    """Replaces the instructions for the final text."""


class OptionsIn(BaseModel):
    """`options` of run_goal, create_plan and execute_plan."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    maxIterations: Annotated[int, Field(ge=1, le=100)] | None = None
    """Model replies in one step, enforcement prompts not counted."""
    taefMaxRetries: Annotated[int, Field(ge=0, le=20)] | None = None
    """Enforcement prompts in one step."""
    toolMode: Literal["strict", "flexible"] | None = None
    """`strict` shows a step the schemas of its required tools; `flexible` one line of each other tool as well."""
    waitSeconds: Annotated[float, Field(ge=0, le=300)] | None = None
    """How long this call waits before it answers `running`; 0 answers as soon as the execution is durable."""
    synthesize: bool | None = None
    """Whether a model writes the final text; `run_goal` does so by default, `execute_plan` does not."""
    budgets: Budgets | None = None
    """Limits; an execution that reaches one is `incomplete`."""
    prompts: Prompts | None = None
    """Replaces instructions for the model."""
    rehearse: bool | None = None
    """Only call what reads; record what every other call would have done, and ask nobody. Holds for one execution."""
    review: Literal["person"] | None = None
    """Before the first step, a person approves, edits or rejects the plan itself. Holds for one execution."""


KNOWN_KEYS = {
    "options": tuple(OptionsIn.model_fields),
    "options.budgets": tuple(Budgets.model_fields),
    "options.prompts": tuple(Prompts.model_fields),
}


def read_options(document: JsonValue | Mapping[str, JsonValue]) -> dict[str, object]:
    """Returns the given options by the names of `Options`.

    Raises:
        InvalidArguments: a key is unknown or a value is wrong; the message names it.
    """
    if not isinstance(document, Mapping):
        raise InvalidArguments(
            f"options must be an object, not {describe(document)}; send {EXAMPLES['options']}; "
            f"it takes {', '.join(OptionsIn.model_fields)}"
        )
    try:
        parsed = OptionsIn.model_validate(dict(document))
    except ValidationError as error:
        problems = list_pydantic_faults(error, "options", KNOWN_KEYS)
        raise InvalidArguments("; ".join(problems[:10]), details={"problems": list[JsonValue](problems)}) from None
    budgets, prompts = parsed.budgets or Budgets(), parsed.prompts or Prompts()
    given: dict[str, object] = {
        "max_iterations": parsed.maxIterations,
        "taef_max_retries": parsed.taefMaxRetries,
        "tool_mode": parsed.toolMode,
        "wait_seconds": parsed.waitSeconds,
        "synthesize": parsed.synthesize,
        "budget_model_tokens": budgets.modelTokens,
        "budget_tool_calls": budgets.toolCalls,
        "budget_seconds": budgets.seconds,
        "prompt_planning": prompts.planning,
        "prompt_execution": prompts.execution,
        "prompt_synthesis": prompts.synthesis,
        "rehearse": parsed.rehearse,
        "review": parsed.review,
    }
    if parsed.rehearse and parsed.review:
        raise InvalidArguments("a rehearsal asks nobody, so options.review does not go with options.rehearse")
    return {name: value for name, value in given.items() if value is not None}


def to_invalid_arguments(error: ValidationError, where: str, model: type[BaseModel]) -> InvalidArguments:
    """Returns pydantic's error as an `InvalidArguments` that names each key, and for an unknown one what was meant.

    `model` is what the document was read as.
    """
    problems: list[JsonValue] = []
    for fault in error.errors(include_url=False, include_input=False)[:10]:
        path = "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            hint = did_you_mean(str(fault["loc"][-1]), _find_keys(model, fault["loc"][:-1]))
            problems.append(f"unknown key {where}{path[:MAX_PATH_CHARS]}{hint}")
        else:
            problems.append(f"{where}{path[:MAX_PATH_CHARS]}: {fault['msg'].removeprefix('Value error, ')}")
    return InvalidArguments("; ".join(map(str, problems)), details={"problems": problems})


def _find_keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Returns the keys that the model takes at this path; keys of mappings and places in lists lead nowhere further."""
    found: type[BaseModel] = model
    for part in path:
        if (field := found.model_fields.get(str(part))) is not None:
            found = next(_find_models(field.annotation), found)
    return list(found.model_fields)


def _find_models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _find_models(argument)

"""The decorator `@planwarden.tool`, which turns a function into a tool.

The schema comes from the signature, the description from the docstring. The engine fills in a parameter annotated
`CallContext`, which is not part of the schema. Plain (not async) functions run on a worker thread. After a blocking
tool, the engine waits for an answer, whether the tool returns a `Suspend` or anything else.
"""

import inspect
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal, TypeVar, cast, get_type_hints, overload

import anyio.from_thread
import anyio.to_thread
from pydantic import ConfigDict, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning

from planwarden.agent.approval.answers import Decision
from planwarden.agent.common.errors import OutcomeUnknown, UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import CallContext, Effect, ExecutionMode, OnTimeout, Risk, ToolDefinition
from planwarden.tools.base import MARK, NOT_A_FAULT, Tool, define, first_line

Parameters = Mapping[str, tuple[Any, Any]]
"""Annotation and default of each parameter; the default `...` means that there is none."""
ArgumentReader = Callable[[dict[str, JsonValue]], dict[str, Any]]
"""Returns a value for each parameter. Raises `pydantic.ValidationError` for arguments that do not fit."""
# A tool's own types are unknown here; the tool's schema checks the values.
ToolFunction = Callable[..., Any]
Function = TypeVar("Function", bound=ToolFunction)

CALL_TIMEOUT_S = 60.0
THREAD_WAIT_S = 1.0
"""A function that waited longer than this for a thread runs only if its call still belongs to this process."""


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk | None = None,
    effect: Effect | None = None,
    execution_mode: ExecutionMode = "immediate",
    capabilities: Sequence[str] = (),
    timeout_s: float | Literal["default"] | None = "default",
    on_timeout: OnTimeout = "reject",
    on_resume: ToolFunction | None = None,
) -> Callable[[Function], Function]: ...


def tool(
    function: ToolFunction | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk | None = None,
    effect: Effect | None = None,
    execution_mode: ExecutionMode = "immediate",
    capabilities: Sequence[str] = (),
    timeout_s: float | Literal["default"] | None = "default",
    on_timeout: OnTimeout = "reject",
    on_resume: ToolFunction | None = None,
) -> Any:
    """Mark a function as a tool and return it unchanged, so that it can still be called and tested as usual.

    Name and description come from the function unless given here; the schema always does. `risk` says how much approval
    a call needs: `dangerous` by default, but `confirm` for a blocking tool without an effect. `effect` says what may be
    repeated after a crash. By default it is `effect`, or `read` if `risk` is `read`. `capabilities` are words for the
    catalogue. `timeout_s` limits the call (default: 60 s), or a blocking tool's wait for the answer (default: no
    limit); `on_timeout` says what happens then. `on_resume(payload, decision)` turns the `Decision` on a blocking call
    into its result. A stopped call is cancelled where it waits: cleaning up needs `anyio.CancelScope(shield=True)`.

    Raises:
        UsageError: an argument or the signature is not usable; the message names file and line.
    """

    def mark(target: ToolFunction) -> ToolFunction:
        chosen_effect = effect if effect is not None else "read" if risk == "read" else "effect"
        is_blocking = execution_mode == "blocking"
        only_asks = is_blocking and chosen_effect != "effect"
        chosen_risk = risk if risk is not None else "confirm" if only_asks else "dangerous"
        try:
            tool_name = _read_text("name", name if name is not None else getattr(target, "__name__", ""))
            parameters, context_parameter = _read_signature(target, tool_name)
            schema, read = build_reader(tool_name, parameters)
            definition = define(
                ToolDefinition(
                    name=tool_name,
                    description=_read_text("description", description or inspect.getdoc(target) or tool_name).strip(),
                    input_schema=schema,
                    capabilities=_read_capabilities(capabilities, tool_name),
                    risk=chosen_risk,
                    effect=chosen_effect,
                    execution_mode=execution_mode,
                    timeout_s=timeout_s if timeout_s != "default" else None if is_blocking else CALL_TIMEOUT_S,
                    on_timeout=on_timeout,
                )
            )
            resume = None if on_resume is None else _make_resume(on_resume, tool_name)
            run = _make_runner(target, tool_name)
        except UsageError as error:
            raise UsageError(f"{_name_place(target)}: {error.message}") from error

        async def call(arguments: dict[str, JsonValue], context: CallContext) -> object:
            extra = {} if context_parameter is None else {context_parameter: context}
            return await run(read(arguments) | extra, context)

        setattr(target, MARK, Tool(definition, call, resume))
        return target

    return mark(function) if function is not None else mark


def build_reader(tool_name: str, parameters: Parameters) -> tuple[dict[str, JsonValue], ArgumentReader]:
    """Return the arguments' schema, and a function that reads them. Raises `UsageError` if there is no such schema."""
    fields: dict[str, Any] = dict(parameters)
    try:
        with warnings.catch_warnings():
            # A parameter may have the name of a model's method, such as `copy` or `json`, which we do not call here.
            # A default that JSON cannot hold is left out of the schema; the function itself still has it.
            warnings.filterwarnings("ignore", category=PydanticJsonSchemaWarning)
            warnings.filterwarnings("ignore", 'Field name ".*" in ".*" shadows', UserWarning)
            model = create_model(tool_name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)
            schema: dict[str, Any] = model.model_json_schema()
    except PydanticUserError as error:
        raise UsageError(f"tool {tool_name!r}: its signature has no JSON schema: {first_line(error)}") from error
    # Titles only repeat names.
    for entry in (schema, *schema["properties"].values()):
        entry.pop("title", None)

    def read(arguments: dict[str, JsonValue]) -> dict[str, Any]:
        parsed = model.model_validate(arguments)
        return {name: getattr(parsed, name) for name in parameters}

    return schema, read


def _make_resume(
    on_resume: ToolFunction, tool_name: str
) -> Callable[[JsonValue, JsonValue, CallContext], Awaitable[object]]:
    if not callable(on_resume):
        raise UsageError(f"tool {tool_name!r}: on_resume is {on_resume!r}; give a function of payload and decision")
    run = _make_runner(on_resume, tool_name)

    async def resume(payload: JsonValue, decision: JsonValue, context: CallContext) -> object:
        try:
            return await run({"payload": payload, "decision": _read_decision(decision)}, context)
        except NOT_A_FAULT:
            raise
        # The function may have done something before it failed, and its mistake must not lose the person's answer.
        except BaseException as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise OutcomeUnknown(
                f"on_resume of {tool_name} failed at {_name_line(error, on_resume)} with {reason}; "
                "the person's answer is kept"
            ) from error

    return resume


def _read_decision(decision: JsonValue) -> Decision:
    """Return the recorded answer as a `Decision`. If the clock answered, `approved` is None."""
    fields = cast("dict[str, Any]", decision)
    names = {"approved": "approved", "reason": "reason", "modified_args": "modifiedArgs", "content": "content"}
    return Decision(**{name: fields.get(key) for name, key in names.items()})


def _read_text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{field} is {value!r}; use text")
    return value


def _read_capabilities(words: object, tool_name: str) -> tuple[str, ...]:
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in cast("list[object]", words)):
        raise UsageError(f'tool {tool_name!r}: capabilities is {words!r}; use a list of words, such as ["mail"]')
    return tuple(cast("list[str]", words))


def _name_place(target: ToolFunction) -> str:
    code = getattr(inspect.unwrap(target), "__code__", None)
    return repr(target) if code is None else f"{PurePath(code.co_filename).name}:{code.co_firstlineno}"


def _name_line(error: BaseException, function: ToolFunction) -> str:
    """Return FILE:LINE of the innermost frame of the error, in the function's own file if the error has one there."""
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or frames
    return f"{PurePath(own[-1].filename).name}:{own[-1].lineno}"


def _make_runner(target: ToolFunction, tool_name: str) -> Callable[[dict[str, Any], CallContext], Awaitable[Any]]:
    """Return a function that calls the target: on the event loop if the target is async, otherwise on a thread."""
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        # A call would only make the generator; its body would run outside the call and its time limit, or never.
        raise UsageError(f"tool {tool_name!r} uses yield; return the whole result instead")
    if inspect.iscoroutinefunction(target):
        return lambda values, context: target(**values)

    async def run_on_thread(values: dict[str, Any], context: CallContext) -> object:
        asked_at = time.monotonic()

        def run() -> object:
            if time.monotonic() - asked_at > THREAD_WAIT_S:
                anyio.from_thread.run(context.confirm_lease)
            return target(**values)

        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)

    return run_on_thread


def _read_signature(target: ToolFunction, tool_name: str) -> tuple[Parameters, str | None]:
    """Return the parameters that arguments fill, and the name of the one for the `CallContext`, if any."""
    if inspect.isclass(target):
        raise UsageError(f"tool {tool_name!r} is a class; mark a function")
    try:
        hints = get_type_hints(target, include_extras=True)
    except (NameError, SyntaxError, TypeError, AttributeError) as error:
        raise UsageError(f"tool {tool_name!r}: an annotation cannot be read: {error}") from error
    context_parameter: str | None = None
    parameters: dict[str, tuple[Any, Any]] = {}
    for parameter in inspect.signature(target).parameters.values():
        hint = hints.get(parameter.name, object)
        # pydantic would leave these names out of the schema.
        is_hidden = parameter.name.startswith("_") or parameter.name == "model_config"
        if (is_hidden and hint is not CallContext) or parameter.kind not in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            raise UsageError(f"tool {tool_name!r}: parameter {parameter.name!r} cannot be passed by name")
        if hint is CallContext:
            context_parameter = parameter.name
        else:
            parameters[parameter.name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    return parameters, context_parameter

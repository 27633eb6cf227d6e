"""`@planwarden.tool`, which turns a function into a tool.

The schema comes from the signature, the description from the docstring. The engine fills in a parameter annotated
`CallContext`, which is not part of the schema. Plain (not async) functions run on a worker thread. A blocking tool may
return `Suspend`; whatever it returns, the engine waits for an answer.
"""

import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar, get_type_hints, overload

import anyio.to_thread

from planwarden.agent.common.errors import UsageError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import CallContext, Effect, ExecutionMode, OnTimeout, Risk, ToolDefinition
from planwarden.tools.arguments import Arguments, Parameters
from planwarden.tools.base import MARK, Tool, define

# A tool's own types are unknown here; the tool's schema checks the values.
ToolFunction = Callable[..., Any]
Function = TypeVar("Function", bound=ToolFunction)

CALL_TIMEOUT_S = 60.0
THREAD_WAIT_S = 1.0
"""A function that waited longer for a thread asks again whether its call is still this process's."""


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk | None = None,
    effect: Effect = "effect",
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
    effect: Effect = "effect",
    execution_mode: ExecutionMode = "immediate",
    capabilities: Sequence[str] = (),
    timeout_s: float | Literal["default"] | None = "default",
    on_timeout: OnTimeout = "reject",
    on_resume: ToolFunction | None = None,
) -> Any:
    """Mark a function as a tool and return it unchanged, so that it can still be called and tested as usual.

    Name, description and schema come from the function unless they are given. `risk` says who must agree: `dangerous`
    by default, but `confirm` for a blocking tool without an effect. `effect` says what a crash may repeat.
    `capabilities` are words for the catalogue. `timeout_s` limits the call (60 s by default); for a blocking tool it
    limits the wait for the answer (no limit by default), and `on_timeout` says what happens then. `on_resume(payload,
    decision)` turns the decision on a blocking call into its result.
    """

    def mark(target: ToolFunction) -> ToolFunction:
        built = _build_tool(
            target,
            name=name,
            description=description,
            risk=risk or ("dangerous" if effect == "effect" or execution_mode == "immediate" else "confirm"),
            effect=effect,
            execution_mode=execution_mode,
            capabilities=tuple(capabilities),
            timeout_s=timeout_s if timeout_s != "default" else None if execution_mode == "blocking" else CALL_TIMEOUT_S,
            on_timeout=on_timeout,
            on_resume=on_resume,
        )
        setattr(target, MARK, built)
        return target

    return mark(function) if function is not None else mark


def _build_tool(
    target: ToolFunction,
    *,
    name: str | None,
    description: str | None,
    risk: Risk,
    effect: Effect,
    execution_mode: ExecutionMode,
    capabilities: tuple[str, ...],
    timeout_s: float | None,
    on_timeout: OnTimeout,
    on_resume: ToolFunction | None,
) -> Tool:
    tool_name = name or getattr(target, "__name__", "")
    parameters, context_parameter = _read_signature(target, tool_name)
    accepted = Arguments(tool_name, parameters)
    definition = define(
        ToolDefinition(
            name=tool_name,
            description=(description or inspect.getdoc(target) or tool_name).strip(),
            input_schema=accepted.schema,
            output_schema=None,
            capabilities=capabilities,
            risk=risk,
            effect=effect,
            execution_mode=execution_mode,
            timeout_s=timeout_s,
            on_timeout=on_timeout,
        )
    )
    run, run_resume = _make_runner(target), None if on_resume is None else _make_runner(on_resume)

    async def call(arguments: dict[str, JsonValue], context: CallContext) -> object:
        values = accepted.read(arguments)
        if context_parameter is not None:
            values[context_parameter] = context
        return await run(values, context)

    async def resume(payload: JsonValue, decision: JsonValue, context: CallContext) -> object:
        assert run_resume is not None
        return await run_resume({"payload": payload, "decision": decision}, context)

    return Tool(definition, call, resume if on_resume is not None else None)


def _make_runner(target: ToolFunction) -> Callable[[dict[str, Any], CallContext], Awaitable[Any]]:
    """Returns what calls the function with these values: on the event loop if it is asynchronous, else on a thread."""
    if inspect.iscoroutinefunction(target):
        return lambda values, context: target(**values)

    async def run_on_thread(values: dict[str, Any], context: CallContext) -> object:
        asked_at = time.monotonic()

        def run() -> object:
            if time.monotonic() - asked_at > THREAD_WAIT_S:
                # Imported for the few who wait so long.
                from anyio import from_thread

                from_thread.run(context.confirm_lease)
            return target(**values)

        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)

    return run_on_thread


def _read_signature(target: ToolFunction, tool_name: str) -> tuple[Parameters, str | None]:
    """Returns the parameters that have arguments, and the name of the one that takes the `CallContext`."""
    hints = get_type_hints(target, include_extras=True)
    context_parameter: str | None = None
    found: dict[str, tuple[Any, Any]] = {}
    for parameter in inspect.signature(target).parameters.values():
        hint = hints.get(parameter.name, object)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(f"tool {tool_name!r}: parameter {parameter.name!r} cannot be passed by name")
        if hint is CallContext:
            context_parameter = parameter.name
        else:
            found[parameter.name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    return found, context_parameter

"""The `calculator` tool: arithmetic that a model should not do in its head.

The expression comes from a model and counts as hostile. It is parsed once; `_check_node` lets through a short list of
syntax (numbers, operators, calls of known functions, lists as their arguments) and nothing else; simpleeval then
evaluates the tree with operators and functions that refuse before they compute something large. Every value on the
way stays below `MAX_MAGNITUDE`, so the work is bounded by the length of the expression.

Not promised: decimal arithmetic. Numbers are Python's integers and its binary floating point.
"""

import ast
import math
import operator
import statistics
from collections.abc import Callable, Sequence
from functools import reduce
from typing import cast

from pydantic import JsonValue

# simpleeval ships no type information; what it returns is checked by `_bounded` before anything relies on it.
from simpleeval import EvalWithCompoundTypes, InvalidExpression  # pyright: ignore[reportMissingTypeStubs]

from planwarden.agent.common.errors import ToolError
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.tools.base import Tool, define

Number = int | float
Compute = Callable[..., object]

MAX_EXPRESSION_CHARS = 1_000
MAX_NESTING = 100
"""Depth of the syntax tree; simpleeval recurses twice per level and Python stops at 1,000."""
MAX_MAGNITUDE = 10**308
"""What every value stays below; the largest double is larger, so every reader of the JSON gets a finite number."""
MAX_MAGNITUDE_BITS = 1_024
MAX_COMBINATORIAL = 1_000
"""Largest argument of factorial, comb and perm."""

_TOO_LARGE = "the expression has a value of more than 308 digits; use smaller numbers or logarithms"


def calculator_tool() -> Tool:
    """The built-in `calculator`: `{"expression": "2 * (3 + 4)"}` gives `{"result": 14}`."""
    definition = ToolDefinition(
        name="calculator",
        description=(
            "Calculate an arithmetic expression instead of estimating its value.\n\n"
            "Operators: + - * / // % ** << >>, comparisons, and / or / not, `a if condition else b`. "
            f"Constants: {', '.join(_CONSTANTS)}. Functions: {', '.join(sorted(_FUNCTIONS))}; "
            f"{', '.join(sorted(_OVER_LISTS))} take numbers or one list, such as sum([1, 2, 3]). "
            "Angles are in radians; round() rounds halves to even. No variables, no text, no thousands separators."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "expression": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MAX_EXPRESSION_CHARS,
                    "description": "For example: round(1299 * 1.19, 2)",
                }
            },
            "required": ["expression"],
            "additionalProperties": False,
        },
        output_schema={
            "type": "object",
            "properties": {"result": {"type": ["number", "boolean"]}},
            "required": ["result"],
            "additionalProperties": False,
        },
        capabilities=("math",),
        risk="read",
        effect="read",
        source="builtin",
        timeout_s=10.0,
        annotations={"readOnlyHint": True, "openWorldHint": False},
    )

    async def call(arguments: dict[str, JsonValue], context: CallContext) -> object:
        expression = arguments.get("expression")
        if not isinstance(expression, str):
            raise ToolError("calculator needs the argument 'expression', a string such as '2 * (3 + 4)'")
        return {"result": calculate(expression)}

    return Tool(define(definition), call)


def calculate(expression: str) -> Number | bool:
    """The value of `expression`: a finite number below `MAX_MAGNITUDE`, or a boolean when it is a condition.

    Raises:
        ToolError: it is not arithmetic, is too large to evaluate, or has no finite real value.
    """
    tree = _parse(expression)
    _check_tree(tree)
    value = _evaluate(expression, tree)
    if isinstance(value, list | tuple):
        raise ToolError(
            "the expression is a list, not a number; write numbers without thousands separators "
            "and pass lists to a function, such as sum([1, 2, 3])"
        )
    return value if isinstance(value, bool) else _bounded(value)


def _evaluate(expression: str, tree: ast.expr) -> object:
    """What simpleeval makes of a checked tree: a number, a boolean or a list."""
    evaluator = EvalWithCompoundTypes(operators=_OPERATORS, functions=dict(_FUNCTIONS), names=dict(_CONSTANTS))
    try:
        # The library is untyped; the caller looks at whatever comes back.
        return evaluator.eval(expression, previously_parsed=tree)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except ZeroDivisionError as error:
        raise ToolError("the expression divides by zero") from error
    except OverflowError as error:
        raise ToolError(_TOO_LARGE) from error
    except (InvalidExpression, ValueError, TypeError, RecursionError) as error:
        raise ToolError(f"the expression cannot be calculated: {error}") from error


def _parse(expression: str) -> ast.expr:
    source = expression.strip()
    if not source:
        raise ToolError("the expression is empty; write something such as '2 * (3 + 4)'")
    if len(source) > MAX_EXPRESSION_CHARS:
        raise ToolError(f"the expression has {len(source)} characters; at most {MAX_EXPRESSION_CHARS} are evaluated")
    try:
        return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ToolError(f"the expression is not arithmetic: {error.msg} at character {error.offset or 1}") from error
    except (ValueError, MemoryError, RecursionError) as error:
        # A null byte, a lone surrogate, or signs nested deeper than the parser's stack.
        raise ToolError("the expression is not arithmetic: it cannot be parsed") from error


def _check_tree(tree: ast.expr) -> None:
    """Refuse whatever is not arithmetic before any of it is evaluated; walks without recursion."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_NESTING):
        for node in level:
            _check_node(node)
        level = [child for node in level for child in _operands(node)]
        if not level:
            return
    raise ToolError(
        f"the expression is nested deeper than {MAX_NESTING} levels; write a long chain of + as sum([...]) "
        "or calculate it in parts"
    )


def _operands(node: ast.AST) -> list[ast.AST]:
    """The sub-expressions of a checked node; the name of a function is not one."""
    if isinstance(node, ast.Call):
        return list(node.args)
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def _check_node(node: ast.AST) -> None:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            _bounded(value)
        case ast.Constant(value=value):
            raise ToolError(f"{str(value)[:40]!r} is not a real number; the calculator knows nothing else")
        case ast.Name(id=name):
            if name not in _CONSTANTS:
                raise ToolError(f"{name!r} is not a constant; available are {', '.join(_CONSTANTS)}")
        case ast.Call():
            _check_call(node)
        case ast.BinOp(op=operation) | ast.UnaryOp(op=operation):
            _check_operator(operation)
        case ast.Compare(ops=operations):
            for operation in operations:
                _check_operator(operation)
        case ast.BoolOp() | ast.IfExp() | ast.List() | ast.Tuple():
            pass
        case _:
            raise ToolError(f"the expression is not arithmetic: {type(node).__name__} is not supported")


def _check_call(node: ast.Call) -> None:
    if not isinstance(node.func, ast.Name):
        raise ToolError("only functions can be called; write * for a product, such as 2 * (3 + 4)")
    name = node.func.id
    if name not in _FUNCTIONS:
        raise ToolError(f"there is no function {name!r}; available are {', '.join(sorted(_FUNCTIONS))}")
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise ToolError(f"{name}() takes its arguments in order, without names and without *")


def _check_operator(operation: ast.AST) -> None:
    if isinstance(operation, ast.BitXor):
        # Python would read 2^10 as 8, which nobody who writes it means.
        raise ToolError("'^' is not a power here; write ** instead, such as 2 ** 10")
    if type(operation) not in _OPERATORS:
        raise ToolError(f"the operator {type(operation).__name__} is not arithmetic")


def _number(value: object) -> Number:
    """`value` as an operand: a real number; True counts as 1."""
    match value:
        case bool():
            return int(value)
        case int() | float():
            return value
        case complex():
            raise ToolError("the expression has no real value: it takes a root of a negative number")
        case _:
            raise ToolError("a list can only be the argument of a function, such as sum([1, 2, 3])")


def _bounded(value: object) -> Number:
    """`value` when it is a finite real number below `MAX_MAGNITUDE`."""
    number = _number(value)
    if abs(number) >= MAX_MAGNITUDE:
        raise ToolError(_TOO_LARGE)
    if math.isnan(number):
        raise ToolError("the expression has no defined value (not a number)")
    return number


def _whole(value: Number, limit: int) -> int:
    """`value` as an integer from `-limit` to `limit`. Raises `ValueError` for anything else."""
    if value != int(value):
        raise ValueError(f"{value} is not a whole number")
    if abs(value) > limit:
        raise ValueError(f"its whole numbers must be at most {limit if limit < MAX_MAGNITUDE else '308 digits'}")
    return int(value)


def _power(base: Number, exponent: Number) -> Number:
    exact = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    # Python would happily compute an integer of any size.
    if exact and (int(base).bit_length() - 1) * exponent > MAX_MAGNITUDE_BITS:
        raise OverflowError
    return _bounded(base**exponent)


def _left_shift(value: Number, places: Number) -> int:
    return _whole(value, MAX_MAGNITUDE) << _whole(places, MAX_MAGNITUDE_BITS)


def _right_shift(value: Number, places: Number) -> int:
    return _whole(value, MAX_MAGNITUDE) >> _whole(places, MAX_MAGNITUDE_BITS)


def _round(number: Number, digits: Number = 0, /) -> Number:
    # Rounding an integer to -n digits computes 10 ** n first.
    places = _whole(digits, 308)
    return round(number, places) if places else round(number)


def _gcd(values: Sequence[Number]) -> int:
    return math.gcd(*(_whole(value, MAX_MAGNITUDE) for value in values))


def _lcm(values: Sequence[Number]) -> int:
    # One pair at a time, so that the product of many numbers is refused before it is built.
    whole = [_whole(value, MAX_MAGNITUDE) for value in values]
    return reduce(lambda left, right: int(_bounded(math.lcm(left, right))), whole, 1)


def _combinatorial(compute: Compute) -> Compute:
    return lambda *values: compute(*(_whole(value, MAX_COMBINATORIAL) for value in values))


def _function(name: str, compute: Compute) -> Compute:
    """`compute` over real numbers, its result bounded and its complaints naming the function."""

    def function(*values: object) -> Number:
        try:
            return _bounded(compute(*map(_number, values)))
        except (ValueError, TypeError) as error:
            raise ToolError(f"{name}() cannot be calculated: {error}") from error

    return function


def _over_list(name: str, compute: Callable[[Sequence[Number]], object]) -> Compute:
    """`compute` over numbers that are given one by one or as a single list; at least one."""
    over_numbers = _function(name, lambda *values: compute(values))

    def function(*values: object) -> object:
        is_list = len(values) == 1 and isinstance(values[0], list | tuple)
        numbers = cast("Sequence[object]", values[0]) if is_list else values
        if not numbers:
            raise ToolError(f"{name}() needs at least one number")
        return over_numbers(*numbers)

    return function


def _unary(compute: Compute) -> Callable[[object], Number]:
    return lambda value: _bounded(compute(_number(value)))


def _binary(compute: Callable[[Number, Number], object]) -> Callable[[object, object], Number]:
    return lambda left, right: _bounded(compute(_number(left), _number(right)))


def _condition(compute: Compute) -> Compute:
    return lambda *values: bool(compute(*map(_number, values)))


_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}

_OPERATORS: dict[type[ast.AST], Compute] = {
    ast.Add: _binary(operator.add),
    ast.Sub: _binary(operator.sub),
    ast.Mult: _binary(operator.mul),
    ast.Div: _binary(lambda left, right: left / right),
    ast.FloorDiv: _binary(lambda left, right: left // right),
    ast.Mod: _binary(operator.mod),
    ast.Pow: _binary(_power),
    ast.LShift: _binary(_left_shift),
    ast.RShift: _binary(_right_shift),
    ast.UAdd: _unary(operator.pos),
    ast.USub: _unary(operator.neg),
    ast.Not: _condition(operator.not_),
    ast.Eq: _condition(operator.eq),
    ast.NotEq: _condition(operator.ne),
    ast.Lt: _condition(operator.lt),
    ast.LtE: _condition(operator.le),
    ast.Gt: _condition(operator.gt),
    ast.GtE: _condition(operator.ge),
}

_OVER_LISTS: dict[str, Callable[[Sequence[Number]], object]] = {
    "gcd": _gcd,
    "lcm": _lcm,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "sum": sum,
}

_OVER_NUMBERS: dict[str, Compute] = {
    **{
        function.__name__: function
        for function in (
            *(math.sqrt, math.cbrt, math.exp, math.log, math.log2, math.log10),
            *(math.sin, math.cos, math.tan, math.asin, math.acos, math.atan, math.atan2),
            *(math.sinh, math.cosh, math.tanh, math.degrees, math.radians, math.hypot),
            *(math.floor, math.ceil, math.trunc),
        )
    },
    "abs": abs,
    "comb": _combinatorial(math.comb),
    "factorial": _combinatorial(math.factorial),
    "int": math.trunc,
    "perm": _combinatorial(math.perm),
    "pow": _power,
    "round": _round,
}

_FUNCTIONS: dict[str, Compute] = {
    **{name: _over_list(name, compute) for name, compute in _OVER_LISTS.items()},
    **{name: _function(name, compute) for name, compute in _OVER_NUMBERS.items()},
}

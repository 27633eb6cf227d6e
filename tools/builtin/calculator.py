"""The `calculator` tool: arithmetic that a model should not do in its head.

A model writes the expression, so the expression counts as hostile. Python parses it. `_evaluate` accepts only a short
list of syntax: numbers, operators, calls of known functions, and lists as their arguments. Operators and functions that
could compute something huge check their operands first. Every intermediate value stays below `MAX_MAGNITUDE`, so the
length of the expression limits the work.

Not promised: decimal arithmetic. Numbers are Python's integers and binary floating-point numbers.
"""

import ast
import math
import operator
import statistics
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, cast

from planwarden.agent.common.errors import ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.tools.base import Tool, build_object_schema, define

Number = int | float
Compute = Callable[..., object]

MAX_EXPRESSION_CHARS = 1_000
MAX_NESTING = 100
"""The largest depth of the syntax tree. Each level takes a few of the 1,000 frames that Python's stack may have."""
MAX_MAGNITUDE = 10**308
"""The magnitude that no value may reach. The largest double is above it, so readers of the JSON get a finite number."""
MAX_MAGNITUDE_BITS = 1_024
MAX_COMBINATORIAL = 1_000
"""The largest argument of factorial, comb and perm."""
TOO_LARGE = "the expression has a value of more than 308 digits; use smaller numbers or logarithms"


def calculator_tool() -> Tool:
    """Return the built-in `calculator`, which answers `{"expression": "2 * (3 + 4)"}` with `{"result": 14}`."""
    definition = ToolDefinition(
        name="calculator",
        description=(
            "Calculate an arithmetic expression.\n\nUse it instead of estimating a value. "
            "Operators: + - * / // % ** << >>, comparisons, and / or / not, `a if condition else b`. "
            f"Constants: {', '.join(CONSTANTS)}. Functions: {', '.join(sorted(FUNCTIONS))}; "
            f"{', '.join(sorted(LIST_FUNCTIONS))} take numbers or one list, such as sum([1, 2, 3]). "
            "Angles are in radians; round() rounds halves to even. No variables, no text, no thousands separators."
        ),
        input_schema=build_object_schema(
            {
                "expression": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MAX_EXPRESSION_CHARS,
                    "description": "For example: round(1299 * 1.19, 2)",
                }
            },
            "expression",
        ),
        output_schema=build_object_schema({"result": {"type": ["number", "boolean"]}}, "result"),
        capabilities=("math",),
        risk="read",
        effect="read",
        source="builtin",
        timeout_s=10.0,
        annotations={"readOnlyHint": True, "openWorldHint": False},
    )

    async def call(arguments: dict[str, JsonValue], context: CallContext) -> object:
        return {"result": calculate(str(arguments["expression"]))}

    return Tool(define(definition), call)


def calculate(expression: str) -> Number | bool:
    """Return the value of `expression`: a finite number below `MAX_MAGNITUDE`, or a boolean for a condition.

    Raises `ToolError`: the expression is not arithmetic, is too large to evaluate, or has no finite real value.
    """
    parsed = _parse(expression)
    try:
        value = _evaluate(parsed)
    except ZeroDivisionError as error:
        raise ToolError("the expression divides by zero") from error
    except OverflowError as error:
        raise ToolError(TOO_LARGE) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError(f"the expression cannot be calculated: {error}") from error
    if isinstance(value, list):
        raise ToolError(
            "the expression is a list, not a number; write numbers without thousands separators "
            "and pass lists to a function, such as sum([1, 2, 3])"
        )
    return value if isinstance(value, bool) else _check_size(value)


def _parse(expression: str) -> ast.expr:
    source = expression.strip()
    if not source:
        raise ToolError("the expression is empty; write something such as '2 * (3 + 4)'")
    if len(source) > MAX_EXPRESSION_CHARS:
        raise ToolError(f"the expression has {len(source)} characters; at most {MAX_EXPRESSION_CHARS} are evaluated")
    try:
        return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        where = f"character {error.offset}" if error.offset else "its end"
        raise ToolError(f"the expression is not arithmetic: {error.msg} at {where}") from error
    except (ValueError, MemoryError, RecursionError) as error:
        # The text has a null byte or a lone surrogate, or nests signs too deeply for the parser's stack.
        raise ToolError("the expression is not arithmetic: it cannot be parsed") from error


def _evaluate(node: ast.expr, depth: int = 1) -> object:
    """Return the value of `node`. This function and the next two handle all syntax that an expression may contain."""
    if depth > MAX_NESTING:
        raise ToolError(
            f"the expression is nested deeper than {MAX_NESTING} levels; write a long chain of + as sum([...]) "
            "or calculate it in parts"
        )
    match node:
        case ast.Constant(value=int() | float() as value):
            _check_size(value)
            return value
        case ast.Constant():
            raise ToolError(f"{str(node.value)[:40]!r} is not a real number; the calculator accepts nothing else")
        case ast.Name(id=name):
            if name not in CONSTANTS:
                raise ToolError(f"{name!r} is not a constant; available are {', '.join(CONSTANTS)}")
            return CONSTANTS[name]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_evaluate(part, depth + 1) for part in parts]
        case ast.Call(args=parts):
            return _call(_find_function(node), [_evaluate(part, depth + 1) for part in parts])
        case ast.UnaryOp(op=sign, operand=operand):
            return _operate(sign, _evaluate(operand, depth + 1))
        case ast.BinOp(op=sign, left=lhs, right=rhs):
            return _operate(sign, _evaluate(lhs, depth + 1), _evaluate(rhs, depth + 1))
        case _:
            return _evaluate_condition(node, depth + 1)


def _evaluate_condition(node: ast.expr, depth: int) -> object:
    """Return the value of a condition. As in Python, only the operands that it needs are computed, each only once."""
    value: object = None
    match node:
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, depth) else orelse, depth)
        case ast.BoolOp(op=sign, values=parts):
            for value in (_evaluate(part, depth) for part in parts):
                if bool(value) is isinstance(sign, ast.Or):
                    break
            return value
        case ast.Compare():
            return _compare(node, depth)
        case _:
            raise ToolError(f"the expression is not arithmetic: {type(node).__name__} is not supported")


def _compare(node: ast.Compare, depth: int) -> bool:
    lhs = _evaluate(node.left, depth)
    for sign, other in zip(node.ops, node.comparators, strict=True):
        rhs = _evaluate(other, depth)
        if not _operate(sign, lhs, rhs):
            return False
        lhs = rhs
    return True


def _find_function(node: ast.Call) -> str:
    if not isinstance(node.func, ast.Name):
        raise ToolError("only functions can be called; write * for a product, such as 2 * (3 + 4)")
    name = node.func.id
    if name not in FUNCTIONS:
        raise ToolError(f"there is no function {name!r}; available are {', '.join(sorted(FUNCTIONS))}")
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise ToolError(f"{name}() takes its arguments in order, without names and without *")
    return name


def _call(name: str, values: list[object]) -> Number:
    """Return what the named function returns. The functions in `LIST_FUNCTIONS` take one list or separate numbers."""
    if name in LIST_FUNCTIONS:
        values = cast("list[object]", values[0]) if len(values) == 1 and isinstance(values[0], list) else values
        if not values:
            raise ToolError(f"{name}() needs at least one number")
    numbers = list(map(_read_number, values))
    try:
        return _check_size(FUNCTIONS[name](numbers) if name in LIST_FUNCTIONS else FUNCTIONS[name](*numbers))
    except (ValueError, TypeError) as error:
        raise ToolError(f"{name}() cannot be calculated: {error}") from error


def _operate(sign: ast.AST, *values: object) -> object:
    if isinstance(sign, ast.BitXor):
        # Python would compute 2^10 as 8, but the author of the expression means 1024.
        raise ToolError("'^' is not a power here; write ** instead, such as 2 ** 10")
    if type(sign) not in OPERATORS:
        raise ToolError(f"the operator {type(sign).__name__} is not arithmetic")
    value = OPERATORS[type(sign)](*map(_read_number, values))
    return value if isinstance(value, bool) else _check_size(value)


def _read_number(value: object) -> Number:
    """Return `value` as a real number; True counts as 1. Raises `ToolError` for anything else."""
    match value:
        case bool():
            return int(value)
        case int() | float():
            return value
        case complex():
            raise ToolError("the expression has no real value: it takes a root of a negative number")
        case _:
            raise ToolError("a list can only be the argument of a function, such as sum([1, 2, 3])")


def _check_size(value: object) -> Number:
    """Return `value`. Raises `ToolError` unless it is a finite real number below `MAX_MAGNITUDE`."""
    number = _read_number(value)
    # This is also true of NaN, which is not less than anything.
    if not abs(number) < MAX_MAGNITUDE:
        raise ToolError(TOO_LARGE)
    return number


def _read_whole(value: Number, limit: int = MAX_MAGNITUDE) -> int:
    """Return `value` as an integer from `-limit` to `limit`. Raises `ValueError` for anything else."""
    if value != int(value):
        raise ValueError(f"{value} is not a whole number")
    if abs(value) > limit:
        raise ValueError(f"its whole numbers must be at most {limit if limit < MAX_MAGNITUDE else '308 digits'}")
    return int(value)


def _power(base: Number, exponent: Number) -> Number:
    is_exact = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    if is_exact and (int(base).bit_length() - 1) * exponent > MAX_MAGNITUDE_BITS:
        raise OverflowError
    return _check_size(base**exponent)


def _round(number: Number, digits: Number = 0, /) -> Number:
    # To round an integer to -n digits, Python computes 10 ** n first, so n is limited.
    places = _read_whole(digits, 308)
    return round(number, places) if places else round(number)


def _lcm(values: Sequence[Number]) -> int:
    # Combine one pair at a time and check each result, so that many numbers cannot build up a huge one.
    return reduce(lambda lhs, rhs: int(_check_size(math.lcm(lhs, rhs))), map(_read_whole, values), 1)


def _limit_arguments(compute: Compute) -> Compute:
    return lambda *values: compute(*(_read_whole(value, MAX_COMBINATORIAL) for value in values))


CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_BINARY: dict[type[ast.AST], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: one / other,
    ast.FloorDiv: lambda one, other: one // other,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.LShift: lambda value, places: _read_whole(value) << _read_whole(places, MAX_MAGNITUDE_BITS),
    ast.RShift: lambda value, places: _read_whole(value) >> _read_whole(places, MAX_MAGNITUDE_BITS),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type[ast.AST], Compute] = {ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Not: operator.not_}
OPERATORS: dict[type[ast.AST], Compute] = {**_BINARY, **_UNARY}
LIST_FUNCTIONS: dict[str, Callable[[Sequence[Number]], object]] = {
    "gcd": lambda values: math.gcd(*map(_read_whole, values)),
    "lcm": _lcm,
    "max": max,
    "mean": lambda values: math.fsum(values) / len(values),
    "median": statistics.median,
    "min": min,
    "sum": sum,
}
_OF_MATH = (
    *(math.sqrt, math.cbrt, math.exp, math.log, math.log2, math.log10),
    *(math.sin, math.cos, math.tan, math.asin, math.acos, math.atan, math.atan2),
    *(math.sinh, math.cosh, math.tanh, math.degrees, math.radians, math.hypot),
    *(math.floor, math.ceil, math.trunc),
)
FUNCTIONS: dict[str, Compute] = {
    **LIST_FUNCTIONS,
    **{function.__name__: function for function in _OF_MATH},
    "abs": abs,
    "int": math.trunc,
    "pow": _power,
    "round": _round,
    **{function.__name__: _limit_arguments(function) for function in (math.comb, math.factorial, math.perm)},
}

"""The operators, functions and constants of the calculator, over real numbers below `MAX_MAGNITUDE`.

Each refuses before it computes something large. Python's own would compute an integer of any size.
"""

import ast
import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import cast

from planwarden.agent.common.errors import ToolError

Number = int | float
Compute = Callable[..., object]

MAX_MAGNITUDE = 10**308
"""Every value stays below it. The largest double is larger, so every reader of the JSON gets a finite number."""
MAX_MAGNITUDE_BITS = 1_024
MAX_COMBINATORIAL = 1_000
"""Largest argument of factorial, comb and perm."""

TOO_LARGE = "the expression has a value of more than 308 digits; use smaller numbers or logarithms"


def _number(value: object) -> Number:
    """Returns `value` as an operand: a real number; True counts as 1."""
    match value:
        case bool():
            return int(value)
        case int() | float():
            return value
        case complex():
            raise ToolError("the expression has no real value: it takes a root of a negative number")
        case _:
            raise ToolError("a list can only be the argument of a function, such as sum([1, 2, 3])")


def bounded(value: object) -> Number:
    """Returns `value`.

    Raises:
        ToolError: it is not a finite real number below `MAX_MAGNITUDE`.
    """
    number = _number(value)
    if abs(number) >= MAX_MAGNITUDE:
        raise ToolError(TOO_LARGE)
    if math.isnan(number):
        raise ToolError("the expression has no defined value (not a number)")
    return number


def _whole(value: Number, limit: int) -> int:
    """Returns `value` as an integer from `-limit` to `limit`. Raises `ValueError` for anything else."""
    if value != int(value):
        raise ValueError(f"{value} is not a whole number")
    if abs(value) > limit:
        raise ValueError(f"its whole numbers must be at most {limit if limit < MAX_MAGNITUDE else '308 digits'}")
    return int(value)


def _divide(left: Number, right: Number) -> Number:
    return left / right


def _floor_divide(left: Number, right: Number) -> Number:
    return left // right


def _power(base: Number, exponent: Number) -> Number:
    exact = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    if exact and (int(base).bit_length() - 1) * exponent > MAX_MAGNITUDE_BITS:
        raise OverflowError
    return bounded(base**exponent)


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
    return reduce(lambda left, right: int(bounded(math.lcm(left, right))), whole, 1)


def _mean(values: Sequence[Number]) -> Number:
    return math.fsum(values) / len(values)


def _median(values: Sequence[Number]) -> Number:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _combinatorial(compute: Compute) -> Compute:
    return lambda *values: compute(*(_whole(value, MAX_COMBINATORIAL) for value in values))


def _function(name: str, compute: Compute) -> Compute:
    """Returns `compute` over real numbers, with a bounded result and errors that name the function."""

    def function(*values: object) -> Number:
        try:
            return bounded(compute(*map(_number, values)))
        except (ValueError, TypeError) as error:
            raise ToolError(f"{name}() cannot be calculated: {error}") from error

    return function


def _over_list(name: str, compute: Callable[[Sequence[Number]], object]) -> Compute:
    """Returns `compute` over one or more numbers, passed one by one or as a single list."""
    over_numbers = _function(name, lambda *values: compute(values))

    def function(*values: object) -> object:
        is_list = len(values) == 1 and isinstance(values[0], list)
        numbers = cast("Sequence[object]", values[0]) if is_list else values
        if not numbers:
            raise ToolError(f"{name}() needs at least one number")
        return over_numbers(*numbers)

    return function


def _arithmetic(compute: Compute) -> Compute:
    return lambda *values: bounded(compute(*map(_number, values)))


def _condition(compute: Compute) -> Compute:
    return lambda *values: bool(compute(*map(_number, values)))


CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}

OPERATORS: dict[type[ast.AST], Compute] = {
    ast.Add: _arithmetic(operator.add),
    ast.Sub: _arithmetic(operator.sub),
    ast.Mult: _arithmetic(operator.mul),
    ast.Div: _arithmetic(_divide),
    ast.FloorDiv: _arithmetic(_floor_divide),
    ast.Mod: _arithmetic(operator.mod),
    ast.Pow: _arithmetic(_power),
    ast.LShift: _arithmetic(_left_shift),
    ast.RShift: _arithmetic(_right_shift),
    ast.UAdd: _arithmetic(operator.pos),
    ast.USub: _arithmetic(operator.neg),
    ast.Not: _condition(operator.not_),
    ast.Eq: _condition(operator.eq),
    ast.NotEq: _condition(operator.ne),
    ast.Lt: _condition(operator.lt),
    ast.LtE: _condition(operator.le),
    ast.Gt: _condition(operator.gt),
    ast.GtE: _condition(operator.ge),
}

LIST_FUNCTIONS: dict[str, Callable[[Sequence[Number]], object]] = {
    "gcd": _gcd,
    "lcm": _lcm,
    "max": max,
    "mean": _mean,
    "median": _median,
    "min": min,
    "sum": sum,
}

_NUMBER_FUNCTIONS: dict[str, Compute] = {
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

FUNCTIONS: dict[str, Compute] = {
    **{name: _over_list(name, compute) for name, compute in LIST_FUNCTIONS.items()},
    **{name: _function(name, compute) for name, compute in _NUMBER_FUNCTIONS.items()},
}

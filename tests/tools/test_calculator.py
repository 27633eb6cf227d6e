"""The calculator: it computes what Python does, refuses everything else, and no expression makes it large or slow."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planwarden.agent.common.errors import ToolError
from planwarden.agent.core.tool import CallContext
from planwarden.tools.builtin.calculator import MAX_EXPRESSION_CHARS, MAX_MAGNITUDE, calculate, calculator_tool

CONTEXT = CallContext(execution_id="e", step_id="s", call_id="c", idempotency_key="e:s:1")
NAMES = ("pi", "e", "sqrt", "log", "log10", "sin", "cos", "floor", "ceil", "gcd", "lcm", "factorial", "comb", "perm")
KNOWN: dict[str, object] = {name: getattr(math, name) for name in NAMES}


@pytest.mark.parametrize(
    "expression",
    [
        *("2 * (3 + 4)", "  7\t", "-2 ** 2", "7 // 2 + 7 % 2", "1 / 4", "10 ** -2", "1 << 10 >> 2", "1_000 + 0x10"),
        *("pi", "e ** 2", "sqrt(16) + abs(-3)", "round(2.567, 2)", "round(2.5)", "round(12345, -2)", "log(8, 2)"),
        *("floor(2.7) + ceil(2.1) + int(-2.5)", "log10(10 ** 300)", "sin(0) + cos(0)", "sum([1, 2, 3])"),
        *("max((1, 5, 3)) - min(4, 2)", "gcd(12, 18) + lcm(4, 6, 10)", "factorial(5) + comb(5, 2) + perm(5, 2)"),
        *("2 if 3 > 1 else 0 / 0", "(1 < 2) + 1", "1 < 2 <= 2", "0.1 + 0.2 == 0.3", "not 1", "0 or 5", "2 and 0"),
    ],
)
def test_an_expression_has_the_value_that_python_gives_it(expression: str) -> None:
    expected = eval(expression.strip(), dict(KNOWN))
    assert calculate(expression) == expected and type(calculate(expression)) is type(expected)


@pytest.mark.parametrize(
    ("expression", "value"),
    [("sum(1, 2, 3)", 6), ("mean([1, 2, 3, 4])", 2.5), ("median(3, 1, 2)", 2), ("factorial(5.0)", 120)],
)
def test_functions_that_python_does_not_have_so_take_numbers_or_a_list(expression: str, value: float) -> None:
    assert calculate(expression) == value


DIGITS, WHOLE, ARGUMENT = "more than 308 digits", "not a whole number", "only be the argument of a function"


@pytest.mark.parametrize(
    ("sentence", "expressions"),
    [
        (DIGITS, ["9 ** 9 ** 9", "10 ** 200 * 10 ** 200", "1e200 * 1e200", "1e999", "9" * 400, "exp(1000)"]),
        (DIGITS, ["factorial(171)", "1 << 1024", "lcm(10 ** 300 + 1, 10 ** 299 + 7)"]),
        ("at most 1024", ["1 << 10 ** 9", "1 >> 10 ** 9"]),
        ("at most 1000", ["factorial(10 ** 9)", "comb(10 ** 300, 10 ** 5)", "1 +" * 500 + "1"]),
        ("at most 308", ["round(5, -10 ** 9)"]),
        ("nested deeper", ["+".join("1" * 400), "-" * 900 + "1"]),
        ("too many nested parentheses", ["(" * 400]),
        ("is empty", ["", "  "]),
        ("not arithmetic", ["1 +", "15% of 80", "\0", "1; 2", "x = 1", "1 in [1]", "1 & 2"]),
        ("invalid syntax at its end", ["1 +"]),
        ("invalid syntax at character 4", ["2 +* 3"]),
        ("cannot be parsed", ["\ud800"]),
        (r"write \*\* instead", ["2 ^ 10"]),
        (r"write \* for a product", ["2 (3 + 4)"]),
        ("thousands separators", ["1,000 + 1"]),
        ("a list, not a number", ["[1, 2]"]),
        (ARGUMENT, ["[1] * 1000", "sum([[1], [2]])"]),
        ("needs at least one number", ["sum([])"]),
        ("is not a real number", ["'a' * 1000", "None", "3j"]),
        ("'x' is not a constant; available are pi, e, tau", ["x + 1"]),
        ("'sum' is not a constant", ["sum"]),
        ("no function 'sqr'; available are abs", ["sqr(4)"]),
        (r"\(\) cannot be calculated", ["sqrt(4, 2)", "sqrt(-1)", "log(0)", "factorial(-1)"]),
        (WHOLE, ["factorial(2.5)", "1.5 << 2"]),
        ("no real value", ["(-8) ** 0.5"]),
        ("divides by zero", ["1 / 0", "0 ** -1", "5.5 % 0"]),
        ("without names", ["max(1, key=2)", "max(*[1, 2])"]),
        # Syntax beyond arithmetic is never evaluated.
        (".", ["__import__('os').system('true')", "(1).__class__.__mro__", "().__class__", "pi.real", "await 1"]),
        (".", ["open('/etc/passwd')", "(lambda: 1)()", "[x for x in [1]]", "sum(x for x in [1])", "{1: 2}", "{1, 2}"]),
        (".", ["f'{1}'", "(x := 1)", "[1, 2][0]", "list('aaa')", "rand()"]),
    ],
)
def test_what_is_not_arithmetic_or_would_be_large_is_not_computed(sentence: str, expressions: list[str]) -> None:
    for expression in expressions:
        with pytest.raises(ToolError, match=sentence):
            calculate(expression)


NUMBERS = (
    st.integers(-(10**310), 10**310).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.sampled_from(["pi", "e", "tau", "True"])
)
OPERATORS = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "<", "!=", "and", "or"])
FUNCTIONS = st.sampled_from(["", "round", "sum", "max", "log", "pow", "lcm", "gcd", "comb", "perm", "atan2"])
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: (
        st.builds("({}) {} ({})".format, inner, OPERATORS, inner)
        | st.builds("{}({}, {})".format, FUNCTIONS, inner, inner)
        | st.builds("{}({})".format, st.sampled_from(["sqrt", "-"]), inner)
    ),
    max_leaves=8,
)
"""Well-formed expressions, most of which have a value."""


@given(st.text(max_size=MAX_EXPRESSION_CHARS + 10) | EXPRESSIONS)
@example("1and 2")
@example("round(1e308,-308)")
@example("mean(1e308,1e308)")
def test_any_expression_has_a_finite_bounded_value_or_is_refused(expression: str) -> None:
    try:
        result = calculate(expression)
    except ToolError as error:
        assert 0 < len(error.message) < 600
    else:
        assert abs(result) < MAX_MAGNITUDE and len(json.dumps(result, allow_nan=False)) <= 310


async def test_the_tool_reads_only_and_returns_the_result_as_json() -> None:
    tool = calculator_tool()
    assert (tool.definition.risk, tool.definition.effect, tool.definition.unavailable) == ("read", "read", None)
    assert await tool.call({"expression": "6 * 7"}, CONTEXT) == {"result": 42}

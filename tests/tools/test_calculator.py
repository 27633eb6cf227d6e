"""The calculator: what it computes, what it refuses, and that no expression makes it large or slow."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planwarden.agent.common.errors import ToolError
from planwarden.agent.core.tool import CallContext
from planwarden.tools.builtin.arithmetic import MAX_MAGNITUDE
from planwarden.tools.builtin.calculator import MAX_EXPRESSION_CHARS, calculate, calculator_tool

CONTEXT = CallContext(execution_id="e", step_id="s", call_id="c", idempotency_key="e:s:1")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 * (3 + 4)", 14),
        ("  7\t", 7),
        ("-2 ** 2", -4),
        ("7 // 2 + 7 % 2", 4),
        ("1 / 4", 0.25),
        ("10 ** -2", 0.01),
        ("1 << 10 >> 2", 256),
        ("1_000 + 0x10", 1016),
        ("pi", math.pi),
        ("e ** 2", math.e**2),
        ("sqrt(16) + abs(-3)", 7.0),
        ("round(2.567, 2)", 2.57),
        ("round(2.5)", 2),
        ("round(12345, -2)", 12300),
        ("floor(2.7) + ceil(2.1) + int(-2.5)", 3),
        ("log(8, 2)", 3.0),
        ("log10(10 ** 300)", 300.0),
        ("sin(0) + cos(0)", 1.0),
        ("sum([1, 2, 3])", 6),
        ("sum(1, 2, 3)", 6),
        ("max((1, 5, 3)) - min(4, 2)", 3),
        ("mean([1, 2, 3, 4])", 2.5),
        ("median(3, 1, 2)", 2),
        ("gcd(12, 18) + lcm(4, 6, 10)", 66),
        ("factorial(5) + comb(5, 2) + perm(5, 2)", 150),
        ("factorial(5.0)", 120),
        ("2 if 3 > 1 else 0 / 0", 2),
        ("(1 < 2) + 1", 2),
    ],
)
def test_expression_has_the_value_that_python_gives_it(expression: str, value: float) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(("expression", "holds"), [("1 < 2 <= 2", True), ("0.1 + 0.2 == 0.3", False), ("not 1", False)])
def test_condition_is_answered_with_a_boolean(expression: str, holds: bool) -> None:
    assert calculate(expression) is holds


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("9 ** 9 ** 9", "more than 308 digits"),
        ("10 ** 200 * 10 ** 200", "more than 308 digits"),
        ("1e200 * 1e200", "more than 308 digits"),
        ("1e999", "more than 308 digits"),
        ("9" * 400, "more than 308 digits"),
        ("exp(1000)", "more than 308 digits"),
        ("factorial(171)", "more than 308 digits"),
        ("1 << 1024", "more than 308 digits"),
        ("lcm(10 ** 300 + 1, 10 ** 299 + 7)", "more than 308 digits"),
        ("1 << 10 ** 9", "at most 1024"),
        ("1 >> 10 ** 9", "at most 1024"),
        ("factorial(10 ** 9)", "at most 1000"),
        ("comb(10 ** 300, 10 ** 5)", "at most 1000"),
        ("round(5, -10 ** 9)", "at most 308"),
        ("1 +" * 500 + "1", "at most 1000 are evaluated"),
        ("+".join("1" * 400), "nested deeper"),
        ("-" * 900 + "1", "nested deeper"),
        ("(" * 400, "too many nested parentheses"),
    ],
)
def test_what_would_be_large_or_slow_is_refused_before_it_is_computed(expression: str, sentence: str) -> None:
    with pytest.raises(ToolError, match=sentence):
        calculate(expression)


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("1 +", "not arithmetic"),
        ("15% of 80", "not arithmetic"),
        ("\0", "not arithmetic"),
        ("\ud800", "cannot be parsed"),
        ("1; 2", "not arithmetic"),
        ("x = 1", "not arithmetic"),
        ("2 ^ 10", r"write \*\* instead"),
        ("2 (3 + 4)", r"write \* for a product"),
        ("1,000 + 1", "thousands separators"),
        ("[1, 2]", "a list, not a number"),
        ("[1] * 1000", "only be the argument of a function"),
        ("sum([[1], [2]])", "only be the argument of a function"),
        ("sum([])", "needs at least one number"),
        ("'a' * 1000", "'a' is not a real number"),
        ("None", "is not a real number"),
        ("3j", "is not a real number"),
        ("x + 1", "'x' is not a constant; available are pi, e, tau"),
        ("sum", "'sum' is not a constant"),
        ("sqr(4)", "no function 'sqr'; available are abs"),
        ("sqrt(4, 2)", r"sqrt\(\) cannot be calculated"),
        ("sqrt(-1)", r"sqrt\(\) cannot be calculated"),
        ("log(0)", r"log\(\) cannot be calculated"),
        ("factorial(-1)", r"factorial\(\) cannot be calculated"),
        ("factorial(2.5)", "not a whole number"),
        ("1.5 << 2", "not a whole number"),
        ("(-8) ** 0.5", "no real value"),
        ("1 / 0", "divides by zero"),
        ("0 ** -1", "divides by zero"),
        ("5.5 % 0", "divides by zero"),
        ("max(1, key=2)", "without names"),
        ("max(*[1, 2])", "without names"),
        ("1 in [1]", "is not arithmetic"),
        ("1 & 2", "is not arithmetic"),
    ],
)
def test_refusal_says_what_is_wrong_and_what_to_write(expression: str, sentence: str) -> None:
    with pytest.raises(ToolError, match=sentence):
        calculate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "(1).__class__.__mro__",
        "().__class__",
        "pi.real",
        "open('/etc/passwd')",
        "(lambda: 1)()",
        "[x for x in [1]]",
        "sum(x for x in [1])",
        "{1: 2}",
        "{1, 2}",
        "f'{1}'",
        "(x := 1)",
        "[1, 2][0]",
        "await 1",
        "list('aaa')",
        "rand()",
    ],
)
def test_syntax_beyond_arithmetic_is_never_evaluated(expression: str) -> None:
    with pytest.raises(ToolError):
        calculate(expression)


TOKENS = st.sampled_from(
    [
        *("0", "1", "2", "7", "10", "300", "999", "0.5", "1e308", "1e-308", "9" * 40, "True", "pi", "e"),
        *("+", "-", "*", "/", "//", "%", "**", "<<", ">>", "<", "==", " and ", " or ", "not ", " if ", " else "),
        *("(", ")", "[", "]", ",", " ", "^", "~", ".", "'a'", "_", "x", ":", "\n"),
        *("sum(", "max(", "round(", "factorial(", "comb(", "lcm(", "sqrt(", "log(", "mean(", "pow(", "hypot("),
    ]
)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> str:
    """Well-formed expressions, most of which have a value."""
    if depth == 0 or draw(st.booleans()):
        return draw(
            st.one_of(
                st.integers(-(10**310), 10**310).map(str),
                st.floats(allow_nan=False, allow_infinity=False).map(repr),
                st.sampled_from(["pi", "e", "tau", "True"]),
            )
        )
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    operator = draw(st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "<", "!=", "and", "or"]))
    function = draw(st.sampled_from(["", "round", "sum", "max", "log", "pow", "lcm", "gcd", "comb", "perm", "atan2"]))
    return draw(
        st.sampled_from(
            [f"({left}) {operator} ({right})", f"{function}({left}, {right})", f"sqrt({left})", f"-({left})"]
        )
    )


def result_or_none(expression: str) -> float | None:
    """The result after the checks that hold for every expression, None when it is refused."""
    try:
        result = calculate(expression)
    except ToolError as error:
        assert 0 < len(error.message) < 600
        return None
    assert abs(result) < MAX_MAGNITUDE
    assert len(json.dumps(result, allow_nan=False)) <= 310
    return result


@given(st.text(max_size=MAX_EXPRESSION_CHARS + 10))
def test_any_text_has_a_finite_bounded_value_or_is_refused(expression: str) -> None:
    result_or_none(expression)


@given(st.lists(TOKENS, max_size=40).map("".join))
@example("1and 2")
@example("round(1e308,-308)")
@example("mean(1e308,1e308)")
def test_any_sequence_of_tokens_has_a_finite_bounded_value_or_is_refused(expression: str) -> None:
    result_or_none(expression)


@given(expressions())
def test_any_arithmetic_has_a_finite_bounded_value_or_is_refused(expression: str) -> None:
    result_or_none(expression)


@given(st.integers(-(10**300), 10**300), st.integers(-(10**300), 10**300))
def test_integer_sums_and_differences_are_exact(left: int, right: int) -> None:
    assert calculate(f"({left}) + ({right})") == left + right
    assert calculate(f"({left}) - ({right})") == left - right


@pytest.mark.anyio
async def test_tool_returns_the_result_as_json() -> None:
    assert await calculator_tool().call({"expression": "6 * 7"}, CONTEXT) == {"result": 42}


@pytest.mark.anyio
async def test_tool_refuses_an_expression_that_is_not_text() -> None:
    with pytest.raises(ToolError, match="'expression'"):
        await calculator_tool().call({"expression": 5}, CONTEXT)


def test_definition_is_a_free_repeatable_builtin() -> None:
    definition = calculator_tool().definition
    assert (definition.name, definition.risk, definition.effect, definition.source) == (
        "calculator",
        "read",
        "read",
        "builtin",
    )
    assert definition.unavailable is None
    assert definition.digest == calculator_tool().definition.digest != ""

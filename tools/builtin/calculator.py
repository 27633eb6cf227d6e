"""The `calculator` tool: arithmetic that a model should not do in its head.

A model writes the expression, so it counts as hostile. Python parses it; `_evaluate` computes a short list of syntax
(numbers, operators, calls of known functions, lists as their arguments) and refuses everything else. Operators and
functions refuse before they compute something large. Every intermediate value stays below `MAX_MAGNITUDE`, so the
length of the expression bounds the work.

Not promised: decimal arithmetic. Numbers are Python's integers and its binary floating point.
"""

import ast

from planwarden.agent.common.errors import ToolError
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.tool import CallContext, ToolDefinition
from planwarden.tools.base import Tool, define
from planwarden.tools.builtin.arithmetic import (
    CONSTANTS,
    FUNCTIONS,
    LIST_FUNCTIONS,
    OPERATORS,
    TOO_LARGE,
    Compute,
    Number,
    bounded,
)

MAX_EXPRESSION_CHARS = 1_000
MAX_NESTING = 100
"""Depth of the syntax tree. A level takes a few frames of Python's stack, which has 1,000."""


def calculator_tool() -> Tool:
    """The built-in `calculator`: `{"expression": "2 * (3 + 4)"}` returns `{"result": 14}`."""
    definition = ToolDefinition(
        name="calculator",
        description=(
            "Calculate an arithmetic expression.\n\nUse it instead of estimating a value. "
            "Operators: + - * / // % ** << >>, comparisons, and / or / not, `a if condition else b`. "
            f"Constants: {', '.join(CONSTANTS)}. Functions: {', '.join(sorted(FUNCTIONS))}; "
            f"{', '.join(sorted(LIST_FUNCTIONS))} take numbers or one list, such as sum([1, 2, 3]). "
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
    """Returns the value of `expression`: a finite number below `MAX_MAGNITUDE`, or a boolean for a condition.

    Raises:
        ToolError: the expression is not arithmetic, is too large to evaluate, or has no finite real value.
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
    return value if isinstance(value, bool) else bounded(value)


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


def _evaluate(node: ast.expr, depth: int = 1) -> object:
    """Returns the value of `node`. It and the next two are the only list of what an expression may contain."""
    if depth > MAX_NESTING:
        raise ToolError(
            f"the expression is nested deeper than {MAX_NESTING} levels; write a long chain of + as sum([...]) "
            "or calculate it in parts"
        )
    match node:
        case ast.Constant():
            return _read_constant(node.value)
        case ast.Name(id=name):
            if name not in CONSTANTS:
                raise ToolError(f"{name!r} is not a constant; available are {', '.join(CONSTANTS)}")
            return CONSTANTS[name]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_evaluate(part, depth + 1) for part in parts]
        case ast.Call(args=parts):
            return _find_function(node)(*[_evaluate(part, depth + 1) for part in parts])
        case ast.UnaryOp(op=operator, operand=operand):
            return _find_operator(operator)(_evaluate(operand, depth + 1))
        case ast.BinOp(op=operator, left=left, right=right):
            return _find_operator(operator)(_evaluate(left, depth + 1), _evaluate(right, depth + 1))
        case _:
            return _evaluate_condition(node, depth + 1)


def _evaluate_condition(node: ast.expr, depth: int) -> object:
    """Returns the value of a node that computes only those of its operands that Python computes, each once."""
    value: object = None
    match node:
        case ast.IfExp(test=test, body=body, orelse=orelse):
            value = _evaluate(body if _evaluate(test, depth) else orelse, depth)
        case ast.BoolOp(op=operator, values=parts):
            for value in (_evaluate(part, depth) for part in parts):
                if bool(value) is isinstance(operator, ast.Or):
                    break
        case ast.Compare():
            value = _compare(node, depth)
        case _:
            raise ToolError(f"the expression is not arithmetic: {type(node).__name__} is not supported")
    return value


def _compare(node: ast.Compare, depth: int) -> bool:
    """Returns the value of a chain such as `1 < x <= 3`."""
    left = _evaluate(node.left, depth)
    for operator, other in zip(node.ops, node.comparators, strict=True):
        right = _evaluate(other, depth)
        if not _find_operator(operator)(left, right):
            return False
        left = right
    return True


def _read_constant(value: object) -> Number:
    if not isinstance(value, int | float):
        raise ToolError(f"{str(value)[:40]!r} is not a real number; the calculator accepts nothing else")
    bounded(value)
    return value


def _find_function(node: ast.Call) -> Compute:
    if not isinstance(node.func, ast.Name):
        raise ToolError("only functions can be called; write * for a product, such as 2 * (3 + 4)")
    name = node.func.id
    if name not in FUNCTIONS:
        raise ToolError(f"there is no function {name!r}; available are {', '.join(sorted(FUNCTIONS))}")
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise ToolError(f"{name}() takes its arguments in order, without names and without *")
    return FUNCTIONS[name]


def _find_operator(operation: ast.AST) -> Compute:
    if isinstance(operation, ast.BitXor):
        # Python would read 2^10 as 8, which nobody who writes it means.
        raise ToolError("'^' is not a power here; write ** instead, such as 2 ** 10")
    if type(operation) not in OPERATORS:
        raise ToolError(f"the operator {type(operation).__name__} is not arithmetic")
    return OPERATORS[type(operation)]

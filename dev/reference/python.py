"""The Python API, from its signatures and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import get_args

import planwarden
from dev.reference.code import sentence, summary, table
from planwarden.agent.approval.answers import Decision
from planwarden.agent.core.execution.requester import LOCAL
from planwarden.agent.core.tool import CallContext, Effect, ExecutionMode, OnTimeout, Risk, Suspend

STRUCTS = (Decision, Suspend, CallContext)
"""Those that programs make or get."""


def everything() -> str:
    """What `import planwarden` gives."""
    rows = ((f"`{name}`", sentence(summary(getattr(planwarden, name)))) for name in planwarden.__all__)
    return table(("name", "what it is"), rows)


def opening() -> str:
    """How a warden is made."""
    return f"```python\n{_signature('Warden', planwarden.Warden.__init__)}\n```\n\n{_prose(planwarden.Warden.__init__)}"


def verbs() -> str:
    """A section for each verb, in the order of the class."""
    methods = {name: method for name, method in vars(planwarden.Warden).items() if inspect.iscoroutinefunction(method)}
    return "\n\n".join(
        f"### {name}\n\n```python\n{_signature(f'await warden.{name}', method)}\n```\n\n{_prose(method)}"
        for name, method in methods.items()
        if not name.startswith("_")
    )


def decorator() -> str:
    """The decorator's arguments."""
    return f"```python\n{_signature('@planwarden.tool', planwarden.tool)}\n```\n\n{_prose(planwarden.tool)}"


def words() -> str:
    """The words that the decorator takes."""
    found = {"Risk": Risk, "Effect": Effect, "ExecutionMode": ExecutionMode, "OnTimeout": OnTimeout}
    rows = ((f"`{name}`", ", ".join(f"`{word}`" for word in get_args(kind))) for name, kind in found.items())
    return table(("type", "one of"), rows)


def _signature(name: str, target: Callable[..., object]) -> str:
    """The signature as it is written in the code, which does not depend on the version of Python."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(target))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    given = [*node.args.posonlyargs, *node.args.args]
    defaults = [*[None] * (len(given) - len(node.args.defaults)), *node.args.defaults]
    pairs = list(zip(given, defaults, strict=True))[len(node.args.posonlyargs) :]
    pieces = [_spelled(*pair) for pair in pairs if pair[0].arg != "self"]
    named = [_spelled(*pair) for pair in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    inside = "".join(f"    {piece},\n" for piece in (*pieces, *(["*"] if pieces and named else []), *named))
    result = "" if node.returns is None else _type(node.returns).strip('"')
    shown = f"{name}(\n{inside})" if inside else f"{name}()"
    return shown if result in ("", "None", "Any") else f"{shown}  # -> {result}"


def _spelled(argument: ast.arg, default: ast.expr | None) -> str:
    assert argument.annotation is not None
    shown = f"{argument.arg}: {_type(argument.annotation)}"
    return shown if default is None else f"{shown} = {_value(default)}"


def _value(default: ast.expr) -> str:
    return f'"{LOCAL}"' if isinstance(default, ast.Name) and default.id == "LOCAL" else _type(default)


def _type(node: ast.expr) -> str:
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "|" not in text:
        return f'"{text}"'
    return text.replace("ev.", "").replace("'", '"')


def _prose(target: object) -> str:
    """The docstring; what it raises becomes a list."""
    text = inspect.getdoc(target)
    if not text:
        raise ValueError(f"{target!r} has no docstring")
    body, _, raised = text.partition("\n\nRaises:\n")
    lines = re.split(r"\n(?=\S)", inspect.cleandoc(raised)) if raised else []
    listed = "".join(
        f"* `{name}`:{rest}\n" for name, _, rest in (" ".join(line.split()).partition(":") for line in lines)
    )
    return body + (f"\n\nRaises:\n\n{listed.strip()}" if listed else "")

"""What the generators of the reference share: reading texts beside the code, and writing Markdown tables."""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

from dev.page import write_table

Json = Mapping[str, Any]
table = partial(write_table, below="---")


def sentence(text: str) -> str:
    """Returns the text as one line, with a capital letter at its beginning and no full stop at its end."""
    line = " ".join(text.split()).rstrip(".")
    return line[:1].upper() + line[1:]


@cache
def field_texts(kind: type) -> Mapping[str, str]:
    """Returns the string below each field of the class and of its base classes in planwarden, by field."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if owner.__module__.startswith("planwarden."):
            [node] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
            assert isinstance(node, ast.ClassDef)
            found.update(texts_below(node.body))
    return found


def texts_below(body: Sequence[ast.stmt]) -> dict[str, str]:
    """Returns the string below each assignment of a module or a class, by name."""
    found: dict[str, str] = {}
    for statement, following in pairwise(body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = sentence(text)
            case _:
                pass
    return found


def summary(thing: object) -> str:
    """Returns the first paragraph of its docstring, as one line."""
    text = inspect.getdoc(thing)
    if not text:
        raise ValueError(f"{thing!r} has no docstring")
    return " ".join(text.split("\n\n")[0].split())


def kind_of(schema: Json, whole: Json) -> str:
    """Describes a JSON Schema in a few words; `whole` has its `$defs`."""
    if "$ref" in schema:
        return kind_of(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in schema:
        parts = [kind_of(part, whole) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(parts)
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type")
    if kind == "array":
        items = kind_of(schema.get("items", {}), whole)
        return "list" if items == "any" else f"list of {items}" if "`" in items else f"list of {_plural(items)}"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    if not isinstance(kind, str):
        return "any"
    return names.get(kind, kind) + _range(schema)


def _plural(kind: str) -> str:
    head, comma, tail = kind.partition(",")
    plural = head if head in ("text", "true or false") else f"{head}s"
    return f"{'texts' if head == 'text' else plural}{comma}{tail}"


def _range(schema: Json) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    if above is not None:
        return f", more than {above:g}" + (f", at most {_number(most)}" if most is not None else "")
    if least is not None and most is not None:
        return f", {_number(least)} to {_number(most)}"
    return f", at least {_number(least)}" if least is not None else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def camel(name: str) -> str:
    """Returns the name as it is in JSON."""
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)

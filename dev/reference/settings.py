"""Settings: the operator's two files, the environment, and the names of models."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard, get_args

from msgspec.structs import fields
from pydantic import BaseModel

import planwarden
from dev.reference.code import field_texts, kind_of, table, texts_below
from planwarden.agent.core.execution import events as ev
from planwarden.agent.models.endpoint import PROVIDERS
from planwarden.server.settings.options import Budgets, OptionsIn, Prompts
from planwarden.server.settings.rules import BudgetSettings, RuleSettings
from planwarden.server.settings.tables import SettingsTables, ToolSettings

Model = type[BaseModel]
PREFIX = "PLANWARDEN_"
TITLES = {
    "tools": '[tools."NAME"]',
    "servers": "[servers.NAME]",
    "notify": "[[notify]]",
    "hooks": "[hooks.NAME]",
    "rules": "[[rules]]",
}
"""Of the tables that a file may have more than once."""


def toml() -> str:
    """A section for each table of `planwarden.toml`."""
    sections = [_section("Top level", SettingsTables, only=("model",))]
    for name, found in SettingsTables.model_fields.items():
        models = [kind for kind in (found.annotation, *get_args(found.annotation)) if _is_model(kind)]
        if not models:
            continue
        model = ToolSettings if name == "tools" else models[0]
        title = TITLES.get(name, f"[{name}]")
        sections.append(_section(f"`{title}`", model))
        if model is RuleSettings:
            sections.append(_section("Entries of `budget`", BudgetSettings))
        for key, part in model.model_fields.items():
            if _is_model(part.annotation):
                sections.append(_section(f"`{title.removesuffix(']')}.{key}]`", part.annotation))
    return "\n\n".join(sections)


def _is_model(kind: object) -> TypeGuard[Model]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _section(title: str, model: Model, only: tuple[str, ...] = ()) -> str:
    return f"### {title}\n\n{model_table(model, only)}"


def model_table(model: Model, only: tuple[str, ...] = ()) -> str:
    """The keys of a model: kind, default, meaning."""
    schema, said = model.model_json_schema(), field_texts(model)
    keys = {name: model.model_fields[name].alias or name for name in only or model.model_fields}
    rows = (
        (f"`{key}`", kind_of(schema["properties"][key], schema), _default(model, name), said[name])
        for name, key in keys.items()
    )
    return table(("key", "value", "default", "meaning"), rows)


def _default(model: Model, name: str) -> str:
    found = model.model_fields[name]
    if found.is_required():
        return "required"
    value = found.get_default(call_default_factory=True)
    if value is None:
        value = _engine_default(name)
    if value is None or value == [] or value == () or value == {} or isinstance(value, BaseModel):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


def _engine_default(name: str) -> object:
    """Returns the value that holds when neither file nor call sets one."""
    return getattr(ev.Options(), name) if name in {entry.name for entry in fields(ev.Options)} else None


def options() -> str:
    """What `options` takes."""
    parts = [model_table(OptionsIn), "`budgets`:", model_table(Budgets), "`prompts`:", model_table(Prompts)]
    return "\n\n".join(parts)


def variables() -> dict[str, str]:
    """Returns planwarden's environment variables with the string below the constant that names each.

    Raises:
        ValueError: a name is used without such a constant.
    """
    known: dict[str, str] = {}
    used: set[str] = set()
    for module in _modules():
        said = texts_below(module.body)
        for node in ast.walk(module):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if _is_ours(text):
                    known[text] = said.get(name, "")
                case ast.Constant(value=str(text)) if _is_ours(text):
                    used.add(text)
                case _:
                    pass
    if missing := sorted(name for name in used if not known.get(name)):
        raise ValueError(f"no string below its constant explains {', '.join(missing)}")
    return known


def _is_ours(text: str) -> bool:
    return text.startswith(PREFIX) and len(text) > len(PREFIX) and text.replace("_", "A").isalpha() and text.isupper()


def _modules() -> Iterator[ast.Module]:
    """Those that name a variable of ours."""
    [root] = planwarden.__path__
    for folder in ("agent", "server", "storage", "tools"):
        for path in sorted((Path(root) / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if PREFIX in text:
                yield ast.parse(text)


def environment() -> str:
    """The table of our variables."""
    found = variables()
    first = ("PLANWARDEN_HOME", "PLANWARDEN_MODEL")
    names = (*first, *sorted(name for name in found if name not in first))
    return table(("variable", "meaning"), ((f"`{name}`", found[name]) for name in names))


def providers() -> str:
    """Which models a setting can name."""
    rows = (
        (
            f"`{name}:MODEL`",
            f"`planwarden[{found.extra}]`",
            " or ".join(f"`{key}`" for key in found.keys) + (" (not needed)" if found.is_local else ""),
            f"`{found.url}`",
            f"`{found.url_variable}`",
        )
        for name, found in PROVIDERS.items()
    )
    return table(("model", "extra", "key", "address", "another address"), rows)

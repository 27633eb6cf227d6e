"""Settings: the operator's two files, the environment, and the names of models."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec.structs import fields
from pydantic import BaseModel

import planwarden
from dev.reference.code import field_texts, kind_of, sentence, table, texts_below
from planwarden.agent.core import events as ev
from planwarden.agent.models.provider.endpoint import PROVIDERS
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.notifications.settings import NotifySettings
from planwarden.server.settings.rules import BudgetSettings, RuleSettings
from planwarden.server.settings.tables import SettingsTables, ToolSettings
from planwarden.server.webhooks.settings import HookSettings
from planwarden.tools.downstream.config import ServerSettings
from planwarden.tools.downstream.config_file import ServerEntry

Model = type[BaseModel] | type[msgspec.Struct]
"""What checks a table: msgspec the usual ones, pydantic those that few homes have."""
LATE: dict[str, Model] = {
    "tools": ToolSettings,
    "http": HttpSettings,
    "servers": ServerSettings,
    "notify": NotifySettings,
    "hooks": HookSettings,
    "rules": RuleSettings,
}
"""Tables whose models are imported when they are there."""
PREFIX = "PLANWARDEN_"


def toml() -> str:
    """A section for each table of `planwarden.toml`."""
    known = _fields(SettingsTables)
    sections = [_section("Top level", SettingsTables, only=("model",))]
    tables: dict[str, str] = {
        "tools": '[tools."NAME"]',
        "servers": "[servers.NAME]",
        "notify": "[[notify]]",
        "hooks": "[hooks.NAME]",
        "rules": "[[rules]]",
    }
    for name, annotation in known.items():
        if name == "model":
            continue
        model = LATE.get(name) or annotation
        title = tables.get(name, f"[{name}]")
        sections.append(_section(f"`{title}`", model))
        if model is RuleSettings:
            sections.append(_section("Entries of `budget`", BudgetSettings))
        for key, found in _fields(model).items():
            if isinstance(found, type) and issubclass(found, BaseModel):
                sections.append(_section(f"`{title.removesuffix(']')}.{key}]`", found))
    return "\n\n".join(sections)


def _fields(model: Model) -> dict[str, Any]:
    """Returns the annotations by name, in the order of the class."""
    if issubclass(model, BaseModel):
        return {name: found.annotation for name, found in model.model_fields.items()}
    return {found.name: found.type for found in fields(model)}


def _schema(model: Model) -> dict[str, Any]:
    if issubclass(model, BaseModel):
        return model.model_json_schema(by_alias=True)
    schema: dict[str, Any] = msgspec.json.schema(model)["$defs"][model.__name__]
    for name, annotation in _fields(model).items():
        # msgspec sorts them; the order of the class says more.
        for kind in (annotation, *get_args(annotation)):
            if get_origin(kind) is Literal:
                schema["properties"][name] = {"enum": get_args(kind)}
    return schema


def _section(title: str, model: Model, only: tuple[str, ...] = ()) -> str:
    return f"### {title}\n\n{model_table(model, only)}"


def model_table(model: Model, only: tuple[str, ...] = ()) -> str:
    """The keys of a model: kind, default, meaning."""
    schema, said = _schema(model), field_texts(model)
    names = only or tuple(_fields(model))
    rows = ((f"`{n}`", kind_of(schema["properties"][n], schema), _default(model, n), sentence(said[n])) for n in names)
    return table(("key", "value", "default", "meaning"), rows)


def _default(model: Model, name: str) -> str:
    if issubclass(model, BaseModel):
        found = model.model_fields[name]
        if found.is_required():
            return "required"
        value = found.get_default(call_default_factory=True)
    else:
        value = getattr(model(), name)
    if value is None:
        value = _engine_default(name)
    if value is None or value == [] or value == () or value == {} or isinstance(value, BaseModel):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else f'{value:g}' if isinstance(value, float) else value}`"


def _engine_default(name: str) -> object:
    """Returns the value that holds when neither file nor call sets one."""
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    known = {entry.name: getattr(ev.Options(), entry.name) for entry in fields(ev.Options)}
    return known.get(snake)


def servers() -> str:
    """The keys of a server in `planwarden.json`."""
    return model_table(ServerEntry)


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


BLOCKS = {
    "planwarden.toml": toml,
    "planwarden.json": servers,
    "environment": environment,
    "providers": providers,
}

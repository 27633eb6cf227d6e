"""Checks the tables of `planwarden.toml` that few homes have, with the pydantic models of their rooms."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.settings.options import to_invalid_arguments


def check_rare_tables(tables: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns what the tables say, by the names that `RARE` lists; `path` is that of the file.

    Raises:
        InvalidArguments: a key is unknown or a value is wrong.
    """
    kinds: dict[str, Any] = {name: (_find_kind(name), ...) for name in tables}
    model = create_model("Tables", __config__=ConfigDict(extra="forbid", strict=True), **kinds)
    try:
        checked = model.model_validate(dict(tables))
    except ValidationError as error:
        problem = to_invalid_arguments(error, path.name, model).message
        raise InvalidArguments(f"{str(path)!r}: {problem}") from None
    return {name: getattr(checked, name) for name in tables}


def _find_kind(name: str) -> Any:
    """Returns what a table is; a file with one of them needs nothing of the others."""
    match name:
        case "http":
            from planwarden.server.auth.settings import HttpSettings

            return HttpSettings
        case "servers":
            from planwarden.tools.downstream.config import ServerSettings

            return dict[str, ServerSettings]
        case _:
            from planwarden.server.notifications.settings import NotifySettings

            return list[NotifySettings]

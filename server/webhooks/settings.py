"""The operator's `[hooks.NAME]` tables: requests from elsewhere that start a saved plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.notifications.settings import Variable, read_key

MAX_HOOKS = 100

HookName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class HookSettings(BaseModel):
    """One `[hooks.NAME]` table; `POST /hooks/NAME` starts its plan."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    plan: Annotated[str, Field(min_length=1, max_length=200)]
    """The saved plan; the body of the request is its input `event`."""
    secret_env: Variable
    """The environment variable that holds the sender's secret, `whsec_` and 24 to 64 bytes in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """An address to which somebody posts. It takes nothing while it has a `problem`."""

    name: str
    plan: str
    key: bytes = field(default=b"", repr=False)
    problem: str | None = None
    """Why signatures cannot be checked here."""


def build_hooks(tables: Mapping[str, HookSettings], environment: Mapping[str, str]) -> tuple[Hook, ...]:
    """Return the hooks in the order of the file. A missing or wrong secret becomes the `problem` of its hook.

    Raises:
        InvalidArguments: there are too many.
    """
    if len(tables) > MAX_HOOKS:
        raise InvalidArguments(f"planwarden.toml has {len(tables)} [hooks] tables, the limit is {MAX_HOOKS}")
    hooks: list[Hook] = []
    for name, table in tables.items():
        key, problem = read_key(table.secret_env, environment)
        hooks.append(Hook(name=name, plan=table.plan, key=key, problem=problem))
    return tuple(hooks)

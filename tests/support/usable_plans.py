"""Saved plans that a plan can use, without files."""

from collections.abc import Mapping, Sequence

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import digest
from planwarden.agent.common.errors import UnknownPlan

Json = dict[str, JsonValue]


class KeptPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One of them."""

    name: str
    title: str | None = None
    description: str | None = None
    inputs: Json | None = None
    document: Json
    digest: str


def keep(name: str, document: JsonValue, description: str | None = None) -> KeptPlan:
    """The plan as a file of that content would give it."""
    content = document if isinstance(document, dict) else {}
    inputs = content.get("inputs")
    return KeptPlan(
        name=name,
        description=description,
        inputs=inputs if isinstance(inputs, dict) else None,
        document=content,
        digest=digest(document),
    )


class KeptPlans:
    """All of them at one moment; it counts how often each is asked for."""

    def __init__(self, kept: Sequence[KeptPlan]) -> None:
        self._kept = tuple(sorted(kept, key=lambda plan: plan.name))
        self.found: list[str] = []

    @classmethod
    def of(cls, documents: Mapping[str, JsonValue]) -> "KeptPlans":
        return cls([keep(name, document) for name, document in documents.items()])

    @property
    def plans(self) -> Sequence[KeptPlan]:
        return self._kept

    def find(self, name: str) -> KeptPlan:
        found = next((plan for plan in self._kept if plan.name == name), None)
        if found is None:
            names = ", ".join(plan.name for plan in self._kept)
            raise UnknownPlan(f"there is no saved plan {name!r} (did you mean 'remind'?); the plans are {names}")
        self.found.append(name)
        return found

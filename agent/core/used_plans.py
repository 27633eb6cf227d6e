"""Which saved plans stand in a plan, and which of its steps came from each.

The log says so, step by step: a step's name proves nothing, because a model may call its step as it likes. A step that
somebody changes afterwards is no longer one of the saved plan.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from planwarden.agent.common.errors import InvalidPlan
from planwarden.agent.core import events as ev

UsedPlans = tuple[ev.UsedPlan, ...]


def combine_used(before: UsedPlans, added: UsedPlans, kept: Collection[str]) -> UsedPlans:
    """Returns what stands in a changed plan: the `added` ones, and of those `before` what has steps in `kept`.

    `kept` are steps that did not change. A plan without steps of its own stays as long as one within it.
    """
    renewed = {step_id for used in added for step_id in used.step_ids}
    left = [
        replace(used, step_ids=tuple(name for name in used.step_ids if name in kept and name not in renewed))
        for used in before
    ]
    places = {place for used in left if used.step_ids for place in _list_places(used.place)}
    return (*(used for used in left if used.place in places), *added)


def list_versions(used: Iterable[ev.UsedPlan]) -> tuple[ev.PlanVersion, ...]:
    """Returns the versions of the used plans, each once."""
    return tuple(dict.fromkeys(ev.PlanVersion(name=found.name, digest=found.digest) for found in used))


def map_origins(used: Iterable[ev.UsedPlan]) -> dict[str, ev.UsedPlan]:
    """Returns the used plan that each step came from, by the step's id; steps of no saved plan are left out."""
    return {step_id: found for found in used for step_id in found.step_ids}


def find_origin(used: Iterable[ev.UsedPlan], step_id: str) -> ev.UsedPlan | None:
    """Returns the used plan that the step came from; None for a step of no saved plan."""
    return next((found for found in used if step_id in found.step_ids), None)


def check_is_as_shown(used: Iterable[ev.UsedPlan], shown: Mapping[str, str]) -> None:
    """Raises `InvalidPlan` when a used plan changed after the model that chose it was `shown` it, with that digest."""
    changed = dict.fromkeys(found.name for found in used if shown.get(found.name, found.digest) != found.digest)
    if changed:
        raise InvalidPlan(
            f"the file of the saved plan {', '.join(map(repr, changed))} changed after it was listed; look at the list "
            "of saved plans again, which shows it as it is now"
        )


def _list_places(place: str) -> Iterable[str]:
    """The place and those around it."""
    parts = place.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))

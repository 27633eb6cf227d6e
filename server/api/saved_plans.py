"""What a service knows of saved plans: their list, and the plan that a name stands for now."""

from planwarden.server.plans.folders import PlanCatalogue
from planwarden.server.plans.library import PlanLibrary
from planwarden.server.plans.plan_file import SavedPlan
from planwarden.server.views.saved_plans import SavedPlanLine


class SavedPlans:
    """The saved plans of one service; none without a library."""

    def __init__(self, library: PlanLibrary | None) -> None:
        self._library = library

    async def find(self, name: str) -> SavedPlan:
        """Returns the plan as its file is now. Raises `UnknownPlan`."""
        return (await self.look()).find(name)

    async def read_versions(self) -> dict[str, str] | None:
        """Returns the versions of the usable plans by name; None without a library, as nothing is known then."""
        return None if self._library is None else {plan.name: plan.digest for plan in (await self.look()).plans}

    async def list(self) -> tuple[SavedPlanLine, ...]:
        """Returns the usable plans by name."""
        return tuple(
            SavedPlanLine(
                name=plan.name,
                title=plan.title,
                description=plan.description,
                inputs=plan.inputs,
                version=plan.digest,
                source=plan.source,
            )
            for plan in (await self.look()).plans
        )

    async def look(self) -> PlanCatalogue:
        """Returns what the folders hold now."""
        return PlanCatalogue() if self._library is None else await self._library.look()

"""What bindings bring to plans within a plan, checked by the `inputs` of these plans when a step takes it.

When a plan is accepted, what it gives to a used plan is checked around its bindings. Their values are known when a step
begins that takes them, because everything that it depends on is finished then: they are checked before the step does
anything. A value that no step takes is never looked at.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from planwarden.agent.common.canonical import measure_at_least
from planwarden.agent.common.errors import InvalidArguments, LimitExceeded
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core.bindings import Binding, Path, find_bindings, find_bound_parts
from planwarden.agent.core.inputs import find_bound_faults
from planwarden.agent.core.plan import Plan
from planwarden.agent.core.plan_words import MAX_CALLS_PER_STEP, MAX_CONDITIONS
from planwarden.agent.core.pointers import MAX_LIST_BYTES, MAX_PARSED_CHARS, ParsedTexts
from planwarden.agent.core.references import BindingSources, build_part
from planwarden.agent.core.scopes import SUFFIX, ScopePart, find_part

MAX_CHECKED_BYTES = 2 * MAX_LIST_BYTES
"""Of the values that one step takes from the inputs of used plans."""
CHECK_LIMIT = 3_000_000
"""Units of `schema_work` for them: enough for a list of 10,000 items whose schema names their parts."""
MAX_TEXT_CHARS = (MAX_CALLS_PER_STEP + MAX_CONDITIONS) * MAX_PARSED_CHARS
"""Read as JSON: as much as the calls and conditions of one step may read."""


class InputChecks:
    """Checks what one step takes from the inputs of used plans, each value once and within a limit of work."""

    def __init__(self, plan: Plan, sources: BindingSources) -> None:
        self._schemas = plan.schemas or {}
        self._sources = sources
        self._texts = ParsedTexts(MAX_TEXT_CHARS)
        self._seen: set[tuple[str, Path]] = set()
        self._values: dict[str, dict[Path, JsonValue]] = {}
        """By scope: what its bindings bring, as far as it was taken until now."""
        self._work_left = CHECK_LIMIT
        self._bytes_left = MAX_CHECKED_BYTES

    def check(self, bindings: Iterable[Binding]) -> None:
        """Checks what the bindings take, directly or through others.

        A value that cannot be found is left to whoever needs it.

        Raises:
            InvalidArguments: it does not fit; the message names the step that uses the plan, and each fault.
            LimitExceeded: it is too large to be checked.
            PartsNeeded: as `resolve`.
        """
        if not self._schemas:
            return
        for name in self._take(bindings):
            where = f"the inputs of the plan that {name.removesuffix(SUFFIX)!r} uses"
            faults, work = find_bound_faults(
                self._schemas[name], self._sources.scopes[name], self._values[name], self._work_left
            )
            self._work_left -= work
            if faults:
                raise InvalidArguments(
                    f"{where} do not fit: {'; '.join(faults[:10])}", details={"problems": list[JsonValue](faults)}
                )
            if self._work_left <= 0:
                raise LimitExceeded(f"{where} are too much work to check; give it less")

    def _take(self, bindings: Iterable[Binding]) -> dict[str, None]:
        """Returns the scopes with new values, those of outer plans first: their faults explain the others."""
        found: dict[str, None] = {}
        for binding in bindings:
            name = binding.reference.step_id
            scope = self._sources.scopes.get(name)
            part = None if scope is None else find_part(scope, binding.reference.pointer)
            if part is None or (name, part.path) in self._seen:
                continue
            self._seen.add((name, part.path))
            found |= self._take(find_bindings(part.written))
            if name in self._schemas and self._add_values(name, part):
                found[name] = None
        return found

    def _add_values(self, name: str, part: ScopePart) -> bool:
        values = self._values.setdefault(name, {})
        before = len(values)
        for path, written in find_bound_parts(part.written, part.path):
            if path in values:
                continue
            try:
                value = build_part(written, replace(self._sources, built={}), self._texts)
            except InvalidArguments:
                continue
            self._bytes_left -= measure_at_least(value, self._bytes_left)
            if self._bytes_left < 0:
                raise LimitExceeded(f"a step takes more than {MAX_CHECKED_BYTES} bytes of the inputs of used plans")
            values[path] = value
        return len(values) > before

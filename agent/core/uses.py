"""Plans within plans: `expand_uses` puts the steps of saved plans in the place of the steps that use them.

`{"id": "remind", "use": "remind_customer", "inputs": {...}}` becomes the steps of `remind_customer`, with ids
`remind.STEP`. What depends on `remind` depends on each of them, and those that wait for nothing in their own plan wait
for what `remind` waits for. Their inputs become the scope `remind.inputs`, see `planwarden.agent.core.scopes`. A plan
within a plan reaches nothing else of the plan around it.

Everything is JSON here: `parse_plan` checks what comes out as it checks any plan. A plan is expanded once, however
often it is used, and the expansion ends as soon as it has too many steps.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from pydantic import JsonValue, ValidationError

from planwarden.agent.common.canonical import check_depth, measure_at_least
from planwarden.agent.common.errors import InvalidPlan, LimitExceeded, UsageError
from planwarden.agent.common.form import SentForm, list_pydantic_faults
from planwarden.agent.core import events as ev
from planwarden.agent.core.bindings import INPUTS, ITEM, ITEM_INDEX, find_binding_faults, find_bindings, find_references
from planwarden.agent.core.inputs import fill_bound_inputs, find_inputs_faults
from planwarden.agent.core.placeholders import find_placeholders
from planwarden.agent.core.plan import Author
from planwarden.agent.core.plan_checks.arguments import CHECK_LIMIT
from planwarden.agent.core.plan_input import ENGINE_KEYS, USE_KEYS, UseInput, sent_plan
from planwarden.agent.core.plan_words import MAX_ID_CHARS, MAX_STEPS, SCOPE_SCHEMAS, SCOPES, STEPS_KEYS, USE
from planwarden.agent.core.renaming import rename_bindings, rename_step
from planwarden.agent.core.usable_plans import UsablePlans, UsablePlansNeeded
from planwarden.agent.core.used_plans import UsedPlans

MAX_USE_DEPTH = 5
"""Plans within each other, the outermost one not counted."""
MAX_EXPANDED_BYTES = 4 * 1024 * 1024
MAX_LINKS = 100_000
"""Dependencies of all steps together that come from depending on a whole plan."""
MAX_FAULTS = 50
MAX_SHOWN = 20
OUTERMOST = "the plan"

Entry = dict[str, JsonValue]
_INPUTS_FORM = SentForm({"type": "object"})
_DROPPED = ENGINE_KEYS | {"stepType", "expectedOutcome"}
"""Keys of a step that a model may fill in where it uses a plan; they change nothing."""


class ExpandedPlan(NamedTuple):
    document: JsonValue
    """As `parse_plan` takes it."""
    used: UsedPlans = ()
    """The saved plans in it."""


class _Body(msgspec.Struct):
    """The steps of one plan with all plans in it, under their names in this plan."""

    steps: list[Entry]
    scopes: dict[str, Entry]
    schemas: dict[str, JsonValue]
    """Of those scopes that hold bindings: the inputs of their plan."""
    schema: dict[str, JsonValue] | None
    """Of the plan's inputs."""
    size_bytes: int
    longest: tuple[str, ...]
    """The longest chain of plans that it uses."""
    used: list[ev.UsedPlan]
    own: list[str]
    """Ids of the steps that are its own."""
    digest: str = ""


def may_use_plans(document: JsonValue) -> bool:
    """Whether a step of the plan stands for a saved plan, or may do so because something was sent as text."""
    steps = document.get("todoList", document.get("steps")) if isinstance(document, dict) else document
    if not isinstance(steps, list):
        return isinstance(steps, str)
    return any(entry.get(USE) is not None if isinstance(entry, dict) else isinstance(entry, str) for entry in steps)


def expand_uses(
    document: JsonValue,
    plans: UsablePlans | None,
    *,
    name: str | None = None,
    max_steps: int = MAX_STEPS,
    author: Author = "caller",
) -> ExpandedPlan:
    """Returns the plan with each used plan in its place.

    `plans` are None as long as nobody has read them. `name` is that of the plan itself, if it is a saved one. What an
    `author` may write around a used plan differs as in `parse_plan`; a saved plan is always a caller's.

    Raises:
        UsablePlansNeeded: it may use saved plans, and nobody has read them.
        InvalidPlan: with every fault: unknown plans, circles, chains longer than `MAX_USE_DEPTH`, wrong inputs.
        LimitExceeded: nested too deeply, too large, or more than `max_steps` steps in all.
    """
    check_depth(document)
    document = sent_plan().tidy(document)
    if not isinstance(document, dict) or not may_use_plans(document) or all(key in document for key in STEPS_KEYS):
        return ExpandedPlan(document)
    if author == "model":
        document = _drop_empty_uses(document)
    if not any(entry.get(USE) is not None for entry in _list_entries(document)):
        # What was sent as text is no step; whoever checks the plan next says so.
        return ExpandedPlan(document)
    if plans is None:
        raise UsablePlansNeeded
    expander = _Expander(plans, max_steps, author)
    body = expander.expand(document, (name or OUTERMOST,))
    if expander.faults:
        problems = expander.faults[:MAX_FAULTS]
        raise InvalidPlan(
            f"the plans within the plan do not fit: {'; '.join(problems[:MAX_SHOWN])}",
            details={"problems": list[JsonValue](problems)},
        )
    expanded: Entry = {key: value for key, value in document.items() if key not in STEPS_KEYS}
    expanded["todoList"] = list[JsonValue](body.steps)
    for key, added in ((SCOPES, body.scopes), (SCOPE_SCHEMAS, body.schemas)):
        given = document.get(key)
        expanded[key] = {**(given if isinstance(given, dict) else {}), **added}
    return ExpandedPlan(expanded, tuple(body.used))


class _Expander:
    def __init__(self, plans: UsablePlans, max_steps: int, author: Author) -> None:
        self.faults: list[str] = []
        self.bodies: dict[str, _Body | None] = {}
        """By name of a saved plan; None for one with faults."""
        self._plans = plans
        self._author: Author = author
        self._max_steps = max_steps
        self._check_left = CHECK_LIMIT
        self._links = 0

    def expand(self, document: Entry, chain: tuple[str, ...]) -> _Body:
        """Returns the steps of a plan, the last one of the chain of plans that use each other."""
        entries = _list_entries(document)
        self._check_count(len(entries))
        if not _has_only_entries(document):
            self.faults.append(f"{_in_plan(chain)}the list of steps has something that is no step")
        inputs = document.get(INPUTS)
        size = measure_at_least(document, MAX_EXPANDED_BYTES)
        body = _Body([], {}, {}, inputs if isinstance(inputs, dict) else None, size, (), [], [])
        uses = {str(entry["id"]): found for entry in entries if (found := self._read_use(entry, chain, body))}
        children = {step_id: _name_steps(step_id, found[1]) for step_id, found in uses.items()}
        self._check_names(entries, children, chain)
        if not self.faults:
            self._check_references(entries, children, body, chain)
        previous: list[JsonValue] | None = []
        for entry in entries:
            step_id = entry.get("id")
            needed = self._spread(entry.get("dependencies"), children, previous)
            if entry.get(USE) is None:
                changed: Entry = {} if needed is None else {"dependencies": needed}
                if (confirmed := self._spread(entry.get("confirms"), children, None)) is not None:
                    changed["confirms"] = confirmed
                body.steps.append({**entry, **changed})
                body.own.append(str(step_id))
                previous = [step_id] if isinstance(step_id, str) else None
            elif isinstance(step_id, str) and step_id in uses:
                _place(uses[step_id][0], uses[step_id][1], needed or [], entry.get("when"), body)
                previous = list[JsonValue](children[step_id])
        return body

    def _read_use(self, entry: Entry, chain: tuple[str, ...], body: _Body) -> tuple[UseInput, _Body] | None:
        """Returns a step that stands for a plan, and that plan's steps; None for other steps, and after a fault."""
        if entry.get(USE) is None:
            return None
        where = f"{_in_plan(chain)}step {str(entry.get('id'))[:MAX_ID_CHARS]!r}"
        is_by_model = self._author == "model" and len(chain) == 1
        if is_by_model:
            # Models fill in every key that they know of.
            entry = {
                key: value
                for key, value in entry.items()
                if key in USE_KEYS or not (key in _DROPPED or value in (None, [], {}, ""))
            }
        if unknown := entry.keys() - {*USE_KEYS}:
            from planwarden.agent.common.misnomers import describe_unknown_keys

            self.faults.append(describe_unknown_keys(f"{where} uses a plan and", unknown, USE_KEYS))
            return None
        entry = {key: _INPUTS_FORM.tidy(value) if key == INPUTS else value for key, value in entry.items()}
        try:
            use = UseInput.model_validate({key: value for key, value in entry.items() if value is not None})
        except ValidationError as error:
            self.faults.extend(f"{where}: {fault}" for fault in list_pydantic_faults(error, ""))
            return None
        found = self._find_body(use.use, chain, where)
        if found is None:
            return None
        if is_by_model:
            self.faults.extend(f"{where}: inputs{fault}" for fault in islice(find_placeholders(use.inputs), MAX_FAULTS))
        body.size_bytes += found.size_bytes
        body.longest = max(body.longest, (use.use, *found.longest), key=len)
        if body.size_bytes > MAX_EXPANDED_BYTES:
            raise LimitExceeded(f"the plan has more than {MAX_EXPANDED_BYTES} bytes with the plans that it uses")
        self._fill_scope(use, found, where, body)
        return use, found

    def _find_body(self, name: str, chain: tuple[str, ...], where: str) -> _Body | None:
        if name in chain:
            circle = " -> ".join((*chain[chain.index(name) :], name))
            self.faults.append(f"{where}: the plans use each other in a circle: {circle}")
            return None
        path = (*chain, name)
        if name not in self.bodies and len(path) <= MAX_USE_DEPTH + 1:
            self.bodies[name] = None
            try:
                saved = self._plans.find(name)
            except UsageError as error:
                self.faults.append(f"{where}: {error.message}")
                return None
            body = self.bodies[name] = self._read_body(saved.document, path)
            if body is not None:
                body.digest = saved.digest
        found = self.bodies.get(name)
        whole = path if found is None else (*path, *found.longest)
        if len(whole) > MAX_USE_DEPTH + 1:
            text = f"more than {MAX_USE_DEPTH} plans are used within each other: {' -> '.join(whole)}"
            self.faults.append(f"{where}: {text}")
            return None
        return found

    def _read_body(self, document: JsonValue, chain: tuple[str, ...]) -> _Body | None:
        check_depth(document)
        document = sent_plan().tidy(document)
        if not isinstance(document, dict) or not _list_entries(document):
            self.faults.append(f"{_in_plan(chain)}there is no 'todoList' with steps")
            return None
        inputs = document.get(INPUTS)
        if isinstance(inputs, dict) and (faults := list(find_inputs_faults(inputs))):
            self.faults.extend(f"{_in_plan(chain)}{fault}" for fault in faults)
            return None
        before = len(self.faults)
        body = self.expand(document, chain)
        return body if len(self.faults) == before else None

    def _fill_scope(self, use: UseInput, found: _Body, where: str, body: _Body) -> None:
        """Adds what the plan is given to the scopes of the plan around it."""
        self.faults.extend(f"{where}: inputs: {fault}" for fault in islice(find_binding_faults(use.inputs), MAX_FAULTS))
        if found.schema is None:
            if use.inputs:
                names = ", ".join(repr(key[:MAX_ID_CHARS]) for key in list(use.inputs)[:10])
                self.faults.append(f"{where}: the plan {use.use!r} takes no inputs, but is given {names}")
            return
        if use.inputs.keys() & {"$from", "$text"}:
            self.faults.append(f"{where}: 'inputs' is an object with each value by its name, not a binding")
            return
        filled, faults, work = fill_bound_inputs(found.schema, use.inputs, self._check_left)
        self._check_left -= work
        self.faults.extend(f"{where}: {fault}" for fault in faults)
        if self._check_left <= 0:
            raise LimitExceeded(f"{where}: the inputs of the plans are too much work to check; give them less")
        for name in filled.keys() - use.inputs.keys():
            if any(True for _ in find_bindings(filled[name])):
                self.faults.append(f"{where}: the default of {name[:MAX_ID_CHARS]!r} is a binding; give it a value")
        scope = f"{use.id}.{INPUTS}"
        body.scopes[scope] = filled
        if any(True for _ in find_bindings(filled)):
            body.schemas[scope] = found.schema

    def _check_count(self, count: int) -> None:
        if count > self._max_steps:
            raise LimitExceeded(
                f"with the plans that it uses the plan has more than {self._max_steps} steps, which is the limit; use "
                "fewer, or raise [execution] maxSteps",
                details={"maxSteps": self._max_steps},
            )

    def _check_names(self, entries: list[Entry], children: Mapping[str, list[str]], chain: tuple[str, ...]) -> None:
        where = _in_plan(chain)
        self._check_count(sum(entry.get(USE) is None for entry in entries) + sum(map(len, children.values())))
        ids = Counter(step_id for entry in entries if isinstance(step_id := entry.get("id"), str))
        twice = next((step_id for step_id in children if ids[step_id] > 1), None)
        if twice is not None:
            self.faults.append(f"{where}two steps are called {twice!r}")
        for step_id in ids:
            parts = step_id.split(".")
            outer = next((name for n in range(1, len(parts)) if (name := ".".join(parts[:n])) in children), None)
            if outer is not None:
                self.faults.append(f"{where}step {step_id!r} is called as a step of the plan that {outer!r} uses")
        for long in islice((name for names in children.values() for name in names if len(name) > MAX_ID_CHARS), 1):
            self.faults.append(
                f"{where}step {long[:80]!r} has an id of more than {MAX_ID_CHARS} characters in the place of the step "
                "that uses its plan; choose shorter ids"
            )

    def _check_references(
        self, entries: list[Entry], children: Mapping[str, list[str]], body: _Body, chain: tuple[str, ...]
    ) -> None:
        """Finds bindings to a whole plan, and those of a used plan to anything but its own steps and inputs."""
        known = {str(entry.get("id")) for entry in entries if entry.get(USE) is None}
        known.update(name for names in children.values() for name in names)
        if body.schema is not None:
            known.add(INPUTS)
        for entry in entries:
            where = f"{_in_plan(chain)}step {str(entry.get('id'))[:MAX_ID_CHARS]!r}"
            own = {ITEM, ITEM_INDEX} if entry.get("forEach") is not None else set[str]()
            for name in dict.fromkeys(_list_taken(entry)):
                if name in children:
                    steps = ", ".join(map(repr, children[name][:MAX_SHOWN]))
                    self.faults.append(f"{where} takes the result of {name!r}, which is a plan; take it from {steps}")
                elif len(chain) > 1 and name not in known and name not in own:
                    self.faults.append(
                        f"{where} takes {name[:80]!r}, which is no step of its plan; a plan within a plan takes values "
                        "from its own steps and its inputs"
                    )

    def _spread(
        self, names: JsonValue, children: Mapping[str, list[str]], absent: list[JsonValue] | None
    ) -> list[JsonValue] | None:
        """Returns the ids with each plan's steps for the plan, `absent` without ids; None if they are no list."""
        if names is None:
            return absent
        if not isinstance(names, list):
            return None
        spread = [
            part
            for name in names
            for part in (children[name] if isinstance(name, str) and name in children else [name])
        ]
        self._links += len(spread) - len(names)
        if self._links > MAX_LINKS:
            raise LimitExceeded(f"the plan has more than {MAX_LINKS} dependencies with the plans that it uses")
        return spread


def _place(use: UseInput, found: _Body, needed: list[JsonValue], when: JsonValue, body: _Body) -> None:
    """Adds the steps of the used plan and what its own used plans are given."""
    prefix = f"{use.id}."
    body.used.append(
        ev.UsedPlan(
            name=use.use, digest=found.digest, place=use.id, step_ids=tuple(prefix + name for name in found.own)
        )
    )
    body.used.extend(
        replace(inner, place=prefix + inner.place, step_ids=tuple(prefix + name for name in inner.step_ids))
        for inner in found.used
    )
    for step in found.steps:
        renamed = rename_step(step, prefix)
        if not renamed.get("dependencies"):
            renamed["dependencies"] = [*needed]
        if when is not None:
            renamed["when"] = [*_as_list(when), *_as_list(renamed.get("when"))]
        body.steps.append(renamed)
    for name, scope in found.scopes.items():
        body.scopes[prefix + name] = {key: rename_bindings(value, prefix) for key, value in scope.items()}
    body.schemas |= {prefix + name: schema for name, schema in found.schemas.items()}


def _list_entries(document: JsonValue) -> list[Entry]:
    """Returns the steps that are objects."""
    steps = document.get("todoList", document.get("steps")) if isinstance(document, dict) else None
    return [entry for entry in steps if isinstance(entry, dict)] if isinstance(steps, list) else []


def _drop_empty_uses(document: Entry) -> Entry:
    """Models fill in every key that they know of: an empty one uses nothing."""
    steps = document.get("todoList", document.get("steps"))
    if not isinstance(steps, list):
        return document
    kept = [
        {key: value for key, value in entry.items() if key != USE or value != ""} if isinstance(entry, dict) else entry
        for entry in steps
    ]
    return {**{key: value for key, value in document.items() if key not in STEPS_KEYS}, "todoList": kept}


def _has_only_entries(document: Entry) -> bool:
    steps = document.get("todoList", document.get("steps"))
    return isinstance(steps, list) and all(isinstance(entry, dict) for entry in steps)


def _list_taken(entry: Entry) -> Iterator[str]:
    """Yields the names in all bindings of a step."""
    for key in ("toolCalls", INPUTS, "forEach"):
        yield from (reference.step_id for reference in find_references(entry.get(key)))
    for condition in _as_list(entry.get("when")):
        value = condition.get("value") if isinstance(condition, dict) else None
        yield from (reference.step_id for reference in find_references(value))


def _name_steps(step_id: str, body: _Body) -> list[str]:
    return [f"{step_id}.{step.get('id')}" for step in body.steps]


def _as_list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _in_plan(chain: tuple[str, ...]) -> str:
    return f"in the saved plan {chain[-1]!r}, " if len(chain) > 1 else ""

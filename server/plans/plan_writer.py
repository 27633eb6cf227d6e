"""Writes a plan's file from a finished run, for the command line and the inbox. No other module writes such files.

Arguments whose values occur in the goal will probably differ the next time, such as Ada and 30 in "remind Ada about
30 EUR". Such arguments can become inputs, with the present value as the default.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain, count
from pathlib import Path
from typing import cast

import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, StoreError, UsageError
from planwarden.agent.common.schema_defaults import read_properties
from planwarden.agent.core.binding.bindings import INPUTS
from planwarden.agent.core.execution.state import ExecutionState
from planwarden.agent.core.plan.plan import Plan, plan_to_json
from planwarden.server.plans.library import PlanCatalogue
from planwarden.server.plans.plan_file import (
    MAX_FILE_BYTES,
    MAX_TITLE_CHARS,
    build_saved_plan,
    is_plan_name,
    parse_text,
)
from planwarden.server.plans.yaml_text import write_yaml
from planwarden.server.views.escaping import escape_text

MAX_PROPOSED = 20
MIN_TEXT_CHARS = 2
_TYPES: Mapping[type, str] = {str: "string", int: "integer", float: "number"}

Node = dict[str, JsonValue] | list[JsonValue]


class ProposedInput(msgspec.Struct, frozen=True):
    """A value in the arguments of a call that also occurs in the goal."""

    name: str
    value: str | float
    step_id: str
    """The id of the first step with the value."""


class _Slot(msgspec.Struct, frozen=True):
    """A text or a number in the arguments of a step's call, and where it is."""

    step_id: str
    name: str
    """The last key of an object on the way to the value."""
    value: str | float
    node: Node
    key: str | int


def propose_inputs(plan: Plan, goal: str | None) -> tuple[ProposedInput, ...]:
    """Return the values that may become inputs, each once, in the order of the plan."""
    if not goal or any(step.step_id == INPUTS for step in plan.steps):
        # Bindings could not distinguish a step with that id from the inputs.
        return ()
    used_names = set(read_properties(plan.inputs or {}))
    proposals: dict[tuple[type, str | float], ProposedInput] = {}
    for slot in _list_slots(plan_to_json(plan)):
        value = slot.value
        if (type(value), value) in proposals or not _occurs(value, goal):
            continue
        name = _choose_name(slot.name, used_names)
        used_names.add(name)
        proposals[type(value), value] = ProposedInput(name, value, slot.step_id)
        if len(proposals) == MAX_PROPOSED:
            break
    return tuple(proposals.values())


def check_keepable(execution: ExecutionState) -> Plan:
    """Return the run's plan. Raises `UsageError` if the run has not finished, or a new run cannot repeat it."""
    if execution.plan is None or not execution.is_finished:
        raise UsageError(
            f"thread {execution.thread_id!r} has no finished run: its newest execution is {execution.status}"
        )
    if execution.earlier:
        names = ", ".join(sorted({repr(reference.step_id) for reference in execution.earlier}))
        raise UsageError(
            f"the run takes results of earlier runs of its thread, {names}, which a new run would not have; write the "
            "steps that make them into one plan"
        )
    return execution.plan


def check_new_name(catalogue: PlanCatalogue, name: str) -> None:
    """Raise `UsageError` if a plan cannot have this name, or a file with this name already exists."""
    if not is_plan_name(name):
        raise InvalidArguments(f"{name[:80]!r} is not a name of a plan: letters, digits, - and _, at most 64")
    existing = catalogue.get(name) or catalogue.get_fault(name)
    if existing is not None:
        raise UsageError(f"there is a plan {name!r} already, {str(existing.path)!r}; choose another name")


def suggest_title(goal: str | None) -> str:
    """Return the first line of the goal that is not blank, cut to `MAX_TITLE_CHARS`; empty if there is none."""
    return next((line.strip() for line in (goal or "").splitlines() if line.strip()), "")[:MAX_TITLE_CHARS]


def build_document(
    plan: Plan, title: str, run_inputs: Mapping[str, JsonValue], proposals: Sequence[ProposedInput]
) -> dict[str, JsonValue]:
    """Return the file's content: the plan, with `proposals` as inputs and the run's own inputs as defaults."""
    # A copy, because the run keeps its own plan.
    document = deepcopy(plan_to_json(plan))
    names = {(type(proposed.value), proposed.value): proposed.name for proposed in proposals}
    for slot in list(_list_slots(document)):
        name = names.get((type(slot.value), slot.value))
        if name is not None:
            binding: JsonValue = {"$from": INPUTS, "pointer": "/" + name.replace("~", "~0").replace("/", "~1")}
            cast("dict[str | int, JsonValue]", slot.node)[slot.key] = binding
    inputs = _build_inputs(plan, run_inputs, proposals)
    steps = cast("list[dict[str, JsonValue]]", document["todoList"])
    return {
        **({"title": title} if title else {}),
        **({} if inputs is None else {INPUTS: inputs}),
        "todoList": [_shorten(step, before) for step, before in zip(steps, [None, *steps], strict=False)],
    }


def describe_open_steps(plan: Plan) -> str:
    """Return a sentence, with a space before it, about the steps whose calls a model chose; empty if there are none."""
    ids = [escape_text(step.step_id) for step in plan.steps if step.required_tools and not step.tool_calls]
    text = " A model chooses the calls of {} in each run, as in this one; write toolCalls into the file to fix them."
    return text.format(", ".join(ids)) if ids else ""


def format_plan(document: dict[str, JsonValue], comment: str) -> str:
    """Return the text of the file. Raises `InvalidArguments` if the plan is too large for a file."""
    text = f"# {comment}\n{write_yaml(document)}"
    size = len(text.encode())
    if size > MAX_FILE_BYTES:
        raise InvalidArguments(f"the plan has {size} bytes as a file, the limit is {MAX_FILE_BYTES}")
    return text


def write_plan(folder: Path, name: str, document: dict[str, JsonValue], comment: str) -> Path:
    """Write a new file that only its owner can read, and return its path; never replace a file.

    Raises:
        StoreError: the file cannot be written, or would read back as another plan; no file is left behind.
        InvalidArguments: the plan is too large for a file, or there is a file of this name already.
    """
    path = folder / f"{name}.yaml"
    data = format_plan(document, comment).encode()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp creates the file with mode 0600.
        descriptor, beside = tempfile.mkstemp(dir=folder, prefix=f".{name}.", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _check_written(Path(beside), path, document)
            # A link makes only a complete file visible. It fails if the name is taken, so one of two writers succeeds.
            os.link(beside, path)
        finally:
            os.unlink(beside)
    except FileExistsError:
        raise InvalidArguments(f"there is a file {str(path)!r} already; choose another name") from None
    except OSError as error:
        raise StoreError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    return path


def _check_written(beside: Path, path: Path, document: dict[str, JsonValue]) -> None:
    expected = {key: value for key, value in document.items() if key != "title"}
    try:
        read = build_saved_plan(path.stem, parse_text(beside.read_bytes(), "yaml"), path=path, source="")
        if read.document != expected:
            raise InvalidArguments("it reads back as something else")
    except PlanwardenError as error:
        raise StoreError(
            f"{str(path)!r} was not written, because it would not hold the plan: {error.message}"
        ) from None


def _build_inputs(
    plan: Plan, inputs: Mapping[str, JsonValue], proposals: Sequence[ProposedInput]
) -> dict[str, JsonValue] | None:
    if plan.inputs is None and not proposals:
        return None
    properties: dict[str, JsonValue] = {}
    for name, entry in read_properties(plan.inputs or {}).items():
        is_known = isinstance(entry, dict) and name in inputs
        properties[name] = {**cast("dict[str, JsonValue]", entry), "default": inputs[name]} if is_known else entry
    for proposed in proposals:
        properties[proposed.name] = {"type": _TYPES[type(proposed.value)], "default": proposed.value}
    return {"type": "object", **(plan.inputs or {}), "properties": properties}


def _shorten(step: dict[str, JsonValue], before: dict[str, JsonValue] | None) -> JsonValue:
    """Return the step without what `parse_plan` fills in by itself."""
    calls = cast("list[dict[str, JsonValue]]", step.get("toolCalls", []))
    implied: dict[str, JsonValue] = {
        "stepType": "tool" if step.get("requiredTools") else "reasoning",
        "requiredTools": list(dict.fromkeys(cast("str", call["toolName"]) for call in calls)),
        "dependencies": [] if before is None else [before["id"]],
    }
    return {key: value for key, value in step.items() if key not in implied or implied[key] != value}


def _list_slots(document: dict[str, JsonValue]) -> Iterator[_Slot]:
    """Yield each text and number in the arguments of the plan's calls, without bindings and templates."""
    for step in cast("list[dict[str, JsonValue]]", document["todoList"]):
        for call in cast("list[dict[str, JsonValue]]", step.get("toolCalls", [])):
            yield from _list_values(cast("Node", call["arguments"]), str(step["id"]), "value")


def _list_values(node: Node, step_id: str, name: str) -> Iterator[_Slot]:
    if isinstance(node, dict) and ("$from" in node or "$text" in node):
        return
    for key, child in list(node.items()) if isinstance(node, dict) else list(enumerate(node)):
        called = key if isinstance(key, str) else name
        if isinstance(child, dict | list):
            yield from _list_values(child, step_id, called)
        elif child is not None and not isinstance(child, bool):
            yield _Slot(step_id, called, child, node, key)


def _occurs(value: str | float, goal: str) -> bool:
    """Return whether the goal contains the value as one or more whole words."""
    text = value.strip() if isinstance(value, str) else str(value)
    if isinstance(value, str) and len(text) < MIN_TEXT_CHARS:
        return False
    return re.search(rf"(?<![\w.]){re.escape(text)}(?!\w|\.\d)", goal) is not None


def _choose_name(proposal: str, used_names: set[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", proposal)[:40] or "value"
    names = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(free for free in names if free not in used_names)

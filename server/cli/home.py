"""Opens what a command line names: the home, the store, and a plan (saved or in a file) with its inputs."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from pydantic import JsonValue

from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UnknownPlan
from planwarden.agent.common.paths import expand_home
from planwarden.server.api.home import Home
from planwarden.server.cli.arguments import CommandParser, read_settings, split_pairs
from planwarden.server.plans.library import PlanCatalogue
from planwarden.server.plans.plan_file import DESCRIPTION, INPUTS, TITLE, SavedPlan, is_plan_name, parse_text
from planwarden.server.settings.configuration import Settings
from planwarden.server.views.fields import read_inputs
from planwarden.server.views.suspension import name_program
from planwarden.storage.opening import CompleteStore, open_store

MAX_PLAN_BYTES = 16 * 1024 * 1024
YAML_SUFFIXES = (".yaml", ".yml")

Resource = TypeVar("Resource")
Result = TypeVar("Result")


def open_home(arguments: Namespace) -> Home:
    """Return the home that a command line names. Raises `UsageError` when the settings are not usable."""
    settings = read_settings(arguments)
    words = [] if arguments.home is None else ["--home", str(settings.home)]
    return Home(settings, program=lambda: shlex.join([name_program(), *words, *settings.other_options]))


def use_store(settings: Settings, work: Callable[[CompleteStore], Awaitable[Result]]) -> Result:
    """Open the store, creating it if it is missing, call `work` with it, and return the result. No engine runs."""
    return run_with(open_store(settings.store, settings.policy.policy_digest), work)


def run_with(context: AbstractAsyncContextManager[Resource], work: Callable[[Resource], Awaitable[Result]]) -> Result:
    """Enter the context, call `work` with the resource that it yields, and return the result."""

    async def run() -> Result:
        async with context as resource:
            return await work(resource)

    return anyio.run(run)


def add_plan_arguments(parser: CommandParser) -> None:
    """Add the arguments that name a plan and its inputs."""
    parser.declare("plan PLAN", "name of a saved plan, or the file of any plan, or - for JSON on standard input")
    add_inputs(parser, "an input; the value is JSON, or text where the plan takes text")


def add_inputs(parser: CommandParser, meaning: str) -> None:
    parser.declare("--input NAME=VALUE", meaning, action="append", default=[])
    parser.declare("--inputs FILE", "file with inputs as one object, YAML or JSON; --input adds to it")


class GivenPlan(msgspec.Struct, frozen=True):
    """A plan that the person named."""

    document: JsonValue
    """The plan in the form for `execute_plan`. None if it is missing or unusable; a key may still find an earlier
    run."""
    name: str | None = None
    """The name of a saved plan, even of a missing one; otherwise None."""
    goal: str | None = None
    """The title in the plan's file; None for a saved plan, or without a title."""
    version: str | None = None
    """The digest of a usable saved plan; otherwise None."""
    error: InvalidArguments | None = None
    """Why the plan's file cannot be used."""


def choose_plan(home: Home, word: str, *, has_key: bool = False) -> GivenPlan:
    """Return the saved plan named `word`, or else the plan in the file `word`; for `-`, the plan on standard input.

    Raises:
        UnknownPlan: the saved plan is missing or unusable, no file takes its place, and `has_key` is false.
        InvalidArguments: the file cannot be used.
    """
    if word == "-" or not is_plan_name(word):
        try:
            return _read_plan(word)
        except InvalidArguments as error:
            if not has_key:
                raise
            return GivenPlan(None, error=error)
    catalogue = home.library.look_now()
    if catalogue.get(word) is None:
        if catalogue.get_fault(word) is None and Path(word).is_file():
            return _read_plan(word)
        if has_key:
            return GivenPlan(None, word)
    saved = find_saved_plan(catalogue, word)
    return GivenPlan(saved.document, saved.name, version=saved.digest)


def find_saved_plan(catalogue: PlanCatalogue, name: str) -> SavedPlan:
    """Return the saved plan. Raises `UnknownPlan`, which says what is wrong with the plan's file, if it exists."""
    fault = catalogue.get_fault(name)
    if fault is not None and catalogue.get(name) is None:
        raise UnknownPlan(f"the saved plan {name!r} cannot be used, {str(fault.path)!r}: {fault.reason}")
    return catalogue.find(name)


def _read_plan(path: str) -> GivenPlan:
    """Return the plan in a file, as YAML or JSON according to its suffix; for `-`, the JSON on standard input."""
    document = _read_document(path, "the plan")
    if not isinstance(document, dict):
        return GivenPlan(document)
    title = document.get(TITLE)
    plan: JsonValue = {key: value for key, value in document.items() if key not in (TITLE, DESCRIPTION)}
    return GivenPlan(plan, goal=title if isinstance(title, str) and title.strip() else None)


def read_given_inputs(arguments: Namespace, plan: JsonValue) -> dict[str, JsonValue]:
    """Return the inputs from --inputs and --input. --input overrides --inputs, and gets its types from the plan."""
    inputs: JsonValue = {} if arguments.inputs is None else _read_document(arguments.inputs, "the inputs")
    if not isinstance(inputs, dict):
        raise InvalidArguments(f"the inputs in {arguments.inputs!r} are not an object")
    schema = plan.get(INPUTS) if isinstance(plan, dict) else None
    pairs = split_pairs(arguments.input, "--input")
    return {**inputs, **read_inputs(schema if isinstance(schema, dict) else None, pairs)}


def _read_document(path: str, what: str) -> JsonValue:
    source = "standard input" if path == "-" else repr(path)
    verb = "are" if what.endswith("s") else "is"
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_PLAN_BYTES + 1)
        else:
            with expand_home(path).open("rb") as file:
                data = file.read(MAX_PLAN_BYTES + 1)
    except OSError as error:
        hint = "; --input takes NAME=VALUE" if what == "the inputs" and "=" in source else ""
        raise InvalidArguments(f"cannot read {what} {source}: {error.strerror or error}{hint}") from error
    if len(data) > MAX_PLAN_BYTES:
        raise InvalidArguments(f"{what} in {source} {verb} larger than {MAX_PLAN_BYTES // 1024 // 1024} MiB")
    try:
        return parse_text(data, "yaml" if path.endswith(YAML_SUFFIXES) else "json")
    except PlanwardenError as error:
        raise InvalidArguments(f"cannot read {what} in {source}: {error.message}") from error

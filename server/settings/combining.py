"""Combines the options of call, thread and server; `options.py` has the form of those of a call."""

from collections.abc import Mapping

from msgspec.structs import fields, replace

from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.core import events as ev


def parse_options(document: JsonValue | Mapping[str, JsonValue]) -> dict[str, object]:
    """Returns the given options by the names of `Options`.

    Raises:
        InvalidArguments: a key is unknown or a value is wrong; the message names it.
    """
    if document is None:
        return {}
    # Most calls have none, and commands wait for every import.
    from planwarden.server.settings.options import read_options

    return read_options(document)


_OPTIONS = frozenset(entry.name for entry in fields(ev.Options)) - {"given"}
OF_ONE_RUN = frozenset({"rehearse", "review"})
"""Options that hold for the execution that they were sent for; its thread does not keep them."""


def combine_options(server: ev.Options, thread: ev.Options | None, call: Mapping[str, object]) -> ev.Options:
    """Combines call over thread over server; a call inherits only what the thread was given explicitly."""
    if thread is None and not call and not server.given:
        return server
    inherited = {name: getattr(thread, name) for name in thread.given} if thread is not None else {}
    explicit = {**inherited, **call}
    known = {name: explicit[name] for name in explicit if name in _OPTIONS}
    return replace(server, **known, given=tuple(sorted(explicit.keys() - OF_ONE_RUN)))


def check_is_run(call: Mapping[str, object]) -> None:
    """Raises `InvalidArguments` for options about a run in a call that only plans."""
    for name in OF_ONE_RUN & call.keys():
        raise InvalidArguments(f"create_plan runs nothing, so send options.{name} to execute_plan with its threadId")


def continue_run(begun: ev.Options, options: ev.Options, call: Mapping[str, object]) -> ev.Options:
    """Returns the `options` with which an execution goes on that was begun with others: it stays what it is.

    Raises:
        InvalidArguments: the call wants to make a rehearsal a real run, or the other way round, or to add a review.
    """
    if call.get("rehearse", begun.rehearse) != begun.rehearse:
        now = "a rehearsal" if begun.rehearse else "a real run"
        raise InvalidArguments(f"the execution is {now} and goes on as one; send the plan itself to start another one")
    if call.get("review", begun.review) != begun.review:
        raise InvalidArguments("the execution has begun without a review; send the plan itself to have it reviewed")
    return replace(options, rehearse=begun.rehearse, review=begun.review)

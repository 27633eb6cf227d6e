"""Finds out where paths in arguments really lead, for the operator's rules, which do no I/O themselves.

A file system that does not answer, such as a network drive, holds up a thread and nothing else. After `LIMIT_S` the
targets count as unknown, and a rule that must know one asks a person. A link may change between this lookup and the
call, so rules on paths do not replace a sandbox.
"""

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from planwarden.agent.ports.policy import PathsNeeded, RealPaths

LIMIT_S = 5.0
MAX_THREADS = 4
"""The most threads that may be held up at once; further lookups wait for one of them, at most for `LIMIT_S`."""
MAX_PATHS = 2_000
"""The most paths that one lookup follows; the targets of the others count as unknown."""

Judgement = TypeVar("Judgement")

_limiters = anyio.lowlevel.RunVar[anyio.CapacityLimiter]("planwarden_real_paths")


async def judge_with_paths(judge: Callable[[RealPaths], Judgement], *, in_thread: bool = False) -> Judgement:
    """Return what `judge` returns. When it raises `PathsNeeded`, find out where the paths lead and call it again.

    With `in_thread`, call `judge` in a worker thread.
    """
    paths: RealPaths = {}
    while True:
        try:
            return await anyio.to_thread.run_sync(judge, paths) if in_thread else judge(paths)
        except PathsNeeded as needed:
            paths = {**paths, **await find_real_paths(needed.keys)}


async def find_real_paths(paths: Collection[str]) -> dict[str, str | None]:
    """Return where each path leads when all links in it are followed; None where that cannot be found out.

    A path that does not exist leads to where it would be made.
    """
    with anyio.move_on_after(LIMIT_S):
        return await anyio.to_thread.run_sync(follow_links, paths, abandon_on_cancel=True, limiter=_get_limiter())
    return dict.fromkeys(paths)


def _get_limiter() -> anyio.CapacityLimiter:
    """Return this event loop's limiter for lookups: those that hang must not use up the threads of everything else."""
    try:
        return _limiters.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(MAX_THREADS)
        _limiters.set(limiter)
        return limiter


def _follow(path: str) -> str:
    try:
        return os.path.realpath(path, strict=True)
    except FileNotFoundError:
        # A missing part contains no links, and a link to something missing leads to where that would be made.
        return os.path.realpath(path)


def follow_links(paths: Collection[str]) -> dict[str, str | None]:
    """Return what `find_real_paths` returns; run in the caller's thread and without a time limit."""
    real_paths: dict[str, str | None] = dict.fromkeys(sorted(paths))
    for path in [*real_paths][:MAX_PATHS]:
        # The process may not look there, the links form a loop, or the system cannot have such a name.
        with suppress(OSError, ValueError):
            real_paths[path] = _follow(path)
    return real_paths

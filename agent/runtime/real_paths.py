"""Finding out where paths in arguments really lead, for the operator's rules, which do no I/O themselves.

A file system that does not answer, such as a network drive, holds up a thread and nothing else: after `LIMIT_S` the
path's target counts as unknown, and a rule that must know it asks. A link may be changed between the look and the call;
rules on paths do not replace a sandbox.
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
"""The most that may be held up at once; further looks wait for one of them, no longer than `LIMIT_S`."""
MAX_PATHS = 2_000
"""The most that one look follows; where the others lead counts as unknown."""

Judgement = TypeVar("Judgement")

_limiters = anyio.lowlevel.RunVar[anyio.CapacityLimiter]("planwarden_real_paths")


async def judge_with_paths(judge: Callable[[RealPaths], Judgement], *, in_thread: bool = False) -> Judgement:
    """Return the judgement, which may raise `PathsNeeded`: find out where these paths lead and judge again.

    With `in_thread`, a worker thread judges.
    """
    paths: RealPaths = {}
    while True:
        try:
            return await anyio.to_thread.run_sync(judge, paths) if in_thread else judge(paths)
        except PathsNeeded as needed:
            paths = {**paths, **await find_real_paths(needed.keys)}


async def find_real_paths(paths: Collection[str]) -> dict[str, str | None]:
    """Return where each path leads when all links in it are followed; None where that cannot be found out.

    What does not exist leads to where it would be made.
    """
    with anyio.move_on_after(LIMIT_S):
        return await anyio.to_thread.run_sync(follow_links, paths, abandon_on_cancel=True, limiter=_get_limiter())
    return dict.fromkeys(paths)


def _get_limiter() -> anyio.CapacityLimiter:
    """Return the event loop's own limiter: looks that hang must not use up the threads of everything else."""
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
        # What is missing has no links in it, and a link to something missing leads to where that would be made.
        return os.path.realpath(path)


def follow_links(paths: Collection[str]) -> dict[str, str | None]:
    """Return what `find_real_paths` does, in the thread of the caller, however long that takes."""
    real_paths: dict[str, str | None] = dict.fromkeys(sorted(paths))
    for path in [*real_paths][:MAX_PATHS]:
        # Not allowed to look, a loop of links, a name that the system cannot have.
        with suppress(OSError, ValueError):
            real_paths[path] = _follow(path)
    return real_paths

"""Runs a guarded host once, whose model makes the calls of a script one after the other."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import anyio
import anyio.to_thread

from tests.clients.guard.hosts import Guarded, build_env
from tests.clients.guard.stage import GuardStage
from tests.clients.host_wires import count_results
from tests.clients.hosts import serve_provider
from tests.clients.stage import LIMIT_S, Call, Failed
from tests.support.doubles.messages import ModelReply, ModelRequest

NextCall = Callable[[list[str]], Call]
"""Builds a call from what the model has read so far; it may wait, as a model does that thinks."""


def run_commands(host: Guarded, stage: GuardStage, *commands: str) -> list[str]:
    """Lets the model run the commands, and returns what it read after each."""
    return run_calls(host, stage, *(build_call(host, command) for command in commands))


def build_call(host: Guarded, command: str) -> Call:
    return host.shell, host.build(command)


def run_calls(host: Guarded, stage: GuardStage, *calls: Call | NextCall) -> list[str]:
    """Lets the model make the calls, and returns what it read after each. Raises `Failed`."""
    return anyio.run(_run, host, stage, calls)


async def _run(host: Guarded, stage: GuardStage, calls: Sequence[Call | NextCall]) -> list[str]:
    read: list[str] = []
    failures: list[BaseException] = []

    def answer(request: ModelRequest) -> ModelReply:
        found = list_results(request)
        if len(found) >= len(read):
            read[:] = found
        if host.shell not in request.tools:
            # A side question, such as for a title.
            return ModelReply(text="Shop")
        number = count_results(host.wire, request)
        if number >= len(calls):
            return ModelReply(text="Done.")
        call = calls[number]
        if not callable(call):
            return ModelReply(calls=(call,))
        with ThreadPoolExecutor(1) as thread:
            # An event loop of its own, for what a person does meanwhile; the host waits for this reply.
            made = thread.submit(call, found)
        failure = made.exception()
        if failure is None:
            return ModelReply(calls=(made.result(),))
        # Raised when the host has ended, which would otherwise try again for minutes.
        failures.append(failure)
        return ModelReply(text="I give up.")

    async with serve_provider(host.wire, answer) as double:
        output = await anyio.to_thread.run_sync(run_session, host, stage, double.url)
    if failures:
        raise failures[0]
    if len(read) != len(calls):
        asked = [sorted(request.tools) for request in double.requests]
        raise Failed(f"the model read {read} after {len(calls)} calls, was offered {asked}; the host said: {output}")
    return read


def run_session(host: Guarded, stage: GuardStage, url: str) -> str:
    """Runs the host with the provider at the address, and returns its output. Raises `Failed`."""
    session = host.start(url)
    try:
        done = subprocess.run(
            session.command,
            cwd=stage.project,
            env=build_env(stage, session),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"did not end within {LIMIT_S} s: {(error.stdout or b'').decode()[-1500:]}") from error
    output = done.stdout.decode(errors="replace")[-1500:]
    if done.returncode != 0:
        raise Failed(f"ended with {done.returncode}: {output}")
    return output


def list_results(request: ModelRequest) -> list[str]:
    """Returns what the model reads in the request as results of its calls, in order."""
    return list(_find_results(request.body))


def _find_results(value: Any) -> Iterator[str]:
    match value:
        case {"type": "tool_result", "content": found}:
            yield _to_text(found)
        case {"type": "function_call_output", "output": found}:
            yield _to_text(found)
        case {"functionResponse": {"response": found}}:
            yield _to_text(found)
        case {"role": "tool", "content": found}:
            yield _to_text(found)
        case dict():
            yield from _find_in(list(cast("dict[str, Any]", value).values()))
        case list():
            yield from _find_in(cast("list[Any]", value))
        case _:
            pass


def _find_in(values: list[Any]) -> Iterator[str]:
    for value in values:
        yield from _find_results(value)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)

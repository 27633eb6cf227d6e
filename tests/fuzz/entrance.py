"""What every fuzzed entrance has in common: it takes one input at a time, and judges the answer."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from planwarden.agent.common import errors
from planwarden.agent.common.errors import MAX_MESSAGE_CHARS, PlanwardenError
from planwarden.server.mcp.results import INTERNAL_CODES
from tests.fuzz.inputs import Mutator

MAX_ERROR_CHARS = 20_000
PYTHON_WORDS = ("Traceback (most", "object at 0x", "NoneType", "KeyError", "TypeError", "IndexError", "AttributeError")
PROTOCOL_CODES = {-32700, -32600, -32601, -32602, -32002, -32001, -32000, -32020, -32021, -32022, -32042}
"""JSON-RPC's and MCP's codes for what a client did wrong; not -32603, which is our own failure."""


class Wrong(Exception):
    """An answer that no input may cause."""


class Entrance(Protocol):
    async def send(self, mutator: Mutator) -> str:
        """Makes an input, sets `mutator.sent`, sends it, and returns the kind of answer. Raises `Wrong`."""
        ...

    async def check_alive(self) -> None:
        """Sends an ordinary request. Raises `Wrong` if it is not answered as always."""
        ...


Opener = Callable[[Path], AbstractAsyncContextManager[Entrance]]


def list_codes() -> frozenset[str]:
    """The codes that a caller may see: those of our errors, without those that only say that we failed."""
    kinds = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, PlanwardenError)]
    return frozenset(kind.code for kind in kinds) - INTERNAL_CODES - {"internal_error"}


CODES = list_codes()


def check_error(code: object, message: object) -> str:
    """Returns the code of a refusal that a caller can act on. Raises `Wrong` for any other."""
    if code not in CODES:
        raise Wrong(f"code {code!r}: {message}")
    return check_message(str(code), message)


def check_message(code: str, message: object) -> str:
    """Returns the code if the message is a sentence for people. Raises `Wrong` if it is not."""
    if not isinstance(message, str) or not message.strip():
        raise Wrong(f"{code} without a message")
    # The SDK lists every way in which a message is none, and is not ours to shorten.
    if len(message) > MAX_MESSAGE_CHARS * (3 if code.startswith("-") else 1):
        raise Wrong(f"{code} with a message of {len(message)} characters: {message[:200]}")
    if any(word in message for word in PYTHON_WORDS):
        raise Wrong(f"{code} with words of Python: {message[:500]}")
    return code


def check_result(result: Mapping[str, Any]) -> str:
    """Returns the kind of a tool's result: `ok`, a code, or the kind of result. Raises `Wrong`."""
    if result.get("resultType") not in (None, "complete"):
        return str(result["resultType"])
    content: dict[str, Any] | None = result.get("structuredContent")
    if content is None:
        raise Wrong(f"a result without structured content: {str(result)[:500]}")
    if not result.get("isError"):
        return "ok"
    error = content["error"]
    if len(json.dumps(error)) > MAX_ERROR_CHARS:
        raise Wrong(f"an error of {len(json.dumps(error))} characters: {error['message'][:200]}")
    return check_error(error["code"], error["message"])


def check_rpc(answer: dict[str, Any] | None) -> str:
    if answer is None:
        raise Wrong("no answer")
    if "error" in answer:
        error = answer["error"]
        if error["code"] not in PROTOCOL_CODES:
            raise Wrong(f"JSON-RPC code {error['code']}: {error['message']}")
        return check_message(str(error["code"]), error["message"])
    result = answer["result"]
    return check_result(result) if "content" in result or "structuredContent" in result else "result"

"""What a wire format has to be able to do, and the requests that every provider refuses alike."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.support.doubles.asked import Asked, Body, Said

MODEL = "double-1"
KEY = "sk-double-0123456789abcdefghijklmnopqrstuv"
_LEGAL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Refused(Exception):
    """The request is not one that the provider would take."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Received:
    """One HTTP request."""

    path: str
    headers: Mapping[str, str]
    body: Body


class Wire(Protocol):
    """One provider's format."""

    name: str
    setting: str
    """For `PLANWARDEN_MODEL`."""
    base_path: str
    key_variable: str

    def key(self, received: Received) -> str:
        """The key that came with the request."""
        ...

    def read(self, received: Received, number: int) -> Asked:
        """Raises `Refused` when the provider would not take the request."""
        ...

    def write(self, said: Said, asked: Asked) -> Body: ...

    def stream(self, said: Said, asked: Asked) -> list[str]:
        """The same as server-sent events; only texts are asked for in this way."""
        ...

    def error(self, status: int, message: str) -> Body: ...


def expect(condition: object, message: str, status: int = 400) -> None:
    if not condition:
        raise Refused(status, message)


def check_tools(names: list[str], forced: tuple[str, ...], mode_needs_tools: bool) -> None:
    """What every provider refuses about tools."""
    expect(all(_LEGAL_NAME.fullmatch(name) for name in names), f"illegal tool name in {names}")
    expect(len(set(names)) == len(names), "tool names must be unique")
    expect(set(forced) <= set(names), f"tool_choice names {forced}, which is not among {names}")
    expect(names or not mode_needs_tools, "tool_choice is only allowed when tools are given")


def joined(content: Any) -> str:
    """The text of a message whose content is a string or a list of typed blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content or ())


def events(*bodies: Body) -> list[str]:
    """Server-sent events, named when the body has a type."""
    named = (f"event: {body['type']}\n" if "type" in body else "" for body in bodies)
    return [f"{name}data: {json.dumps(body)}\n\n" for name, body in zip(named, bodies, strict=True)]


def pieces(said: Said) -> list[str]:
    """The text as it comes over the wire, a few words at a time, or more when it is very long."""
    text = said.text or ""
    size = max(30, len(text) // 200)
    return [text[start : start + size] for start in range(0, len(text), size)]


def count_tokens(text: str) -> int:
    return len(text) // 4 + 1


def input_tokens(asked: Asked) -> int:
    return (
        count_tokens(asked.system) + count_tokens(asked.text) + sum(count_tokens(str(s)) for s in asked.tools.values())
    )


def output_tokens(said: Said) -> int:
    return count_tokens(said.text or "") + sum(count_tokens(str(arguments)) for _, arguments in said.calls)

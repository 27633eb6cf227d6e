"""The interface of a wire format, and the requests that every provider refuses."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.support.doubles.messages import Body, ModelReply, ModelRequest

MODEL = "double-1"
KEY = "sk-double-0123456789abcdefghijklmnopqrstuv"
_LEGAL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class RequestRefused(Exception):
    """The provider would not accept the request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class HttpRequest:
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

    def key(self, http_request: HttpRequest) -> str:
        """Returns the key that came with the request."""
        ...

    def read(self, http_request: HttpRequest, number: int) -> ModelRequest:
        """Returns the request. Raises `RequestRefused` when the provider would not accept it."""
        ...

    def write(self, reply: ModelReply, request: ModelRequest) -> Body: ...

    def stream(self, reply: ModelReply, request: ModelRequest) -> list[str]:
        """Returns the reply as server-sent events; planwarden streams only texts."""
        ...

    def error(self, status: int, message: str) -> Body: ...


def expect(condition: object, message: str, status: int = 400) -> None:
    if not condition:
        raise RequestRefused(status, message)


def check_tools(names: list[str], forced: tuple[str, ...], mode_needs_tools: bool) -> None:
    """Raises `RequestRefused` for tools that every provider refuses."""
    expect(all(_LEGAL_NAME.fullmatch(name) for name in names), f"illegal tool name in {names}")
    expect(len(set(names)) == len(names), "tool names must be unique")
    expect(set(forced) <= set(names), f"tool_choice names {forced}, which is not among {names}")
    expect(names or not mode_needs_tools, "tool_choice is only allowed when tools are given")


def join_text(content: Any) -> str:
    """Returns the text of a message whose content is a string or a list of typed blocks."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content or ())


def format_events(*bodies: Body) -> list[str]:
    """Returns server-sent events, with a name when the body has a type."""
    named = (f"event: {body['type']}\n" if "type" in body else "" for body in bodies)
    return [f"{name}data: {json.dumps(body)}\n\n" for name, body in zip(named, bodies, strict=True)]


def split_text(reply: ModelReply) -> list[str]:
    """Returns the pieces in which the text is streamed: a few words each, or more when the text is very long."""
    text = reply.text or ""
    size = max(30, len(text) // 200)
    return [text[start : start + size] for start in range(0, len(text), size)]


def count_tokens(text: str) -> int:
    return len(text) // 4 + 1


def count_input_tokens(request: ModelRequest) -> int:
    return (
        count_tokens(request.system)
        + count_tokens(request.text)
        + sum(count_tokens(str(s)) for s in request.tools.values())
    )


def count_output_tokens(reply: ModelReply) -> int:
    return count_tokens(reply.text or "") + sum(count_tokens(str(arguments)) for _, arguments in reply.calls)

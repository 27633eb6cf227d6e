"""The command `hook send`: signs a message as a sender would, sends it to the server, and shows the answer."""

import secrets
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

import anyio
from pydantic import JsonValue

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.server.api.home import Home
from planwarden.server.cli.arguments import CommandParser, read_value
from planwarden.server.cli.home import open_home
from planwarden.server.cli.output import DONE, FAILED
from planwarden.server.cli.terminal.lines import one_line
from planwarden.server.cli.terminal.terminal import Terminal, write_result
from planwarden.server.notifications.delivery import DeliveryReceipt, post
from planwarden.server.notifications.messages import OutgoingRequest, sign_message
from planwarden.server.settings.tables import Hook
from planwarden.storage.clock import SystemClock

MAX_ANSWER_BYTES = 64 * 1024
REFUSED = (
    "401: the server refuses the signature; it has another secret, no such hook, or a clock that differs by more than "
    "5 minutes, and its log says which"
)


def add_hook(parser: CommandParser) -> None:
    text = "Sign a message with the secret of a hook, send it to the running server, and show what it answers."
    send = parser.add_command("send", handle_send, text)
    send.declare("hook NAME", "name of the hook in planwarden.toml")
    send.declare("event JSON", "the message, which is the input `event` of the hook's plan")
    send.declare("--url URL", "address of the server; default %(default)s", default="http://127.0.0.1:8765")


def handle_send(arguments: Namespace) -> int:
    home = open_home(arguments)
    hook = _find_hook(home.settings.hooks, arguments.hook)
    url = f"{_read_server(arguments.url)}/hooks/{hook.name}"
    try:
        read_json(arguments.event)
        body = arguments.event.encode()
    except UnicodeEncodeError:
        raise InvalidArguments("the message is not UTF-8") from None
    except PlanwardenError as error:
        raise InvalidArguments(f"the message is {error.message}") from error
    receipt = anyio.run(_send, hook, url, body)
    answer = read_value((receipt.answer or (None, b""))[1].decode(errors="replace"))
    document = answer if isinstance(answer, dict) else {}
    result = {"delivered": receipt.is_delivered, "said": receipt.description, **document}
    write_result(arguments, result, draw_answer, home, hook, url, receipt, document)
    return DONE if receipt.is_delivered else FAILED


def _read_server(url: str) -> str:
    """Return the URL without a slash at its end. Raises `InvalidArguments` if it is not the address of a server."""
    # `urlsplit` and `parts.port` raise `ValueError` if the host or the port is not usable.
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable():
            return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    raise InvalidArguments(f"--url {url[:200]!r} is not the address of a server, such as http://127.0.0.1:8765")


def _find_hook(hooks: tuple[Hook, ...], name: str) -> Hook:
    """Return the hook of that name. Raises `UsageError` if there is none, or if its messages cannot be signed here."""
    table = {hook.name: hook for hook in hooks}
    if name not in table:
        others = f"there are {', '.join(table)}" if table else "planwarden.toml has no [hooks]"
        hint = did_you_mean(name, table) or f"; {others}"
        raise UsageError(f"there is no hook {name[:64]!r}{hint}")
    if table[name].problem is not None:
        raise UsageError(f"nothing can be signed for hook {name!r} here: {table[name].problem}")
    return table[name]


async def _send(hook: Hook, url: str, body: bytes) -> DeliveryReceipt:
    """Sign the body with a new id, send it, and return the receipt, even if the network or the server fails."""
    now = SystemClock().now()
    message_id, timestamp = f"test_{secrets.token_hex(16)}", str(int(now))
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign_message(hook.key, message_id, timestamp, body),
    }
    request = OutgoingRequest(url=url, headers=headers, body=body)
    return await post(request, now=now, max_answer_bytes=MAX_ANSWER_BYTES)


def draw_answer(
    terminal: Terminal, home: Home, hook: Hook, url: str, receipt: DeliveryReceipt, document: Mapping[str, JsonValue]
) -> None:
    name = (f"hook {hook.name}", "bold")
    if receipt.is_delivered:
        thread_id = one_line(str(document.get("threadId", "")), 64)
        status = one_line(str(document.get("status", "delivered")), 64)
        terminal.line(name, f"  {status}", mark="done")
        if thread_id:
            terminal.line((home.command("show", thread_id), "dim"), indent=1)
        return
    reason = f"{url} {receipt.description}"
    if receipt.answer is None:
        reason += f"; `{home.command('serve', '--http')}` takes hooks, and --url names another server"
    elif receipt.answer[0] == 401:
        reason = REFUSED
    elif "message" in document:
        reason = f"{receipt.answer[0]}: {one_line(str(document['message']), 500)}"
    terminal.line(name, "  ", (reason, "bad"), mark="failed")

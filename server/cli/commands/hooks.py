"""The command `hook send`: signs a message as its sender would, sends it to the server, and shows the answer."""

import secrets
from argparse import Namespace
from urllib.parse import urlsplit

import anyio
import msgspec
from pydantic import JsonValue

from planwarden.agent.common.canonical import read_json
from planwarden.agent.common.errors import InvalidArguments, PlanwardenError, UsageError
from planwarden.agent.common.suggestions import did_you_mean
from planwarden.server.api.home import Home
from planwarden.server.cli.arguments import open_home
from planwarden.server.cli.command_parser import CommandParser
from planwarden.server.cli.output import DONE, FAILED, write_result
from planwarden.server.cli.terminal.lines import TerminalLine, one_line
from planwarden.server.cli.terminal.terminal import Terminal
from planwarden.server.notifications.delivery import DeliveryReceipt, post
from planwarden.server.notifications.messages import OutgoingRequest, sign_message
from planwarden.server.settings.configuration import FILE
from planwarden.server.settings.hooks import Hook
from planwarden.storage.clock import SystemClock

MAX_ANSWER_BYTES = 64 * 1024
REFUSED = (
    "401: the server refuses the signature; it has another secret, no such hook, or a clock that differs by more than "
    "5 minutes, and its log says which"
)


class HookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answered; of planwarden the run, or why there is none."""

    receipt: DeliveryReceipt
    status: int | None
    document: dict[str, JsonValue]

    def to_json(self) -> dict[str, JsonValue]:
        return {"delivered": self.receipt.is_delivered, "said": self.receipt.description, **self.document}


def add_hook(parser: CommandParser) -> None:
    text = "Sign a message with the secret of a hook, send it to the running server, and show what it answers."
    send = parser.add_commands("send").add("send", handle_send, text)
    send.add_argument("hook", metavar="NAME", help="name of the hook in planwarden.toml")
    send.add_argument("event", metavar="JSON", help="the message, which is the input `event` of the hook's plan")
    send.add_argument(
        "--url",
        default="http://127.0.0.1:8765",
        metavar="URL",
        help="address of the server; default %(default)s",
    )


def handle_send(arguments: Namespace) -> int:
    home = open_home(arguments)
    hook = find_hook(home.settings.hooks, arguments.hook)
    url = _build_url(arguments.url, hook)
    try:
        read_json(arguments.event)
    except PlanwardenError as error:
        raise InvalidArguments(f"the message is {error.message}") from error
    answer = anyio.run(send_message, hook, url, arguments.event.encode())
    write_result(arguments, answer.to_json(), lambda terminal: draw_answer(terminal, home, hook, url, answer))
    return DONE if answer.receipt.is_delivered else FAILED


def find_hook(hooks: tuple[Hook, ...], name: str) -> Hook:
    """Return the hook of that name. Raises `UsageError`: there is none, or nothing can be signed for it here."""
    table = {hook.name: hook for hook in hooks}
    if name not in table:
        hint = did_you_mean(name, table) or (f"; there are {', '.join(table)}" if table else f"; {FILE} has no [hooks]")
        raise UsageError(f"there is no hook {name[:64]!r}{hint}")
    if table[name].problem is not None:
        raise UsageError(f"nothing can be signed for hook {name!r} here: {table[name].problem}")
    return table[name]


async def send_message(hook: Hook, url: str, body: bytes) -> HookAnswer:
    """Sign the body with a fresh id and send it. Never raises for an error of the network or the server."""
    now = SystemClock().now()
    message_id, timestamp = f"test_{secrets.token_hex(16)}", str(int(now))
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": sign_message(hook.key, message_id, timestamp, body),
    }
    request = OutgoingRequest(url=url, headers=headers, body=body)
    receipt = await post(request, now=now, max_answer_bytes=MAX_ANSWER_BYTES)
    status, text = receipt.answer or (None, b"")
    try:
        document = read_json(text)
    except PlanwardenError:
        document = None
    return HookAnswer(receipt=receipt, status=status, document=document if isinstance(document, dict) else {})


def draw_answer(terminal: Terminal, home: Home, hook: Hook, url: str, answer: HookAnswer) -> None:
    receipt, document = answer.receipt, answer.document
    name = (f"hook {hook.name}", "bold")
    if receipt.is_delivered:
        thread_id = one_line(str(document.get("threadId", "")), 64)
        terminal.say(TerminalLine((name, f"  {one_line(str(document.get('status', 'delivered')), 64)}"), "done"))
        if thread_id:
            terminal.say(TerminalLine(((home.command("show", thread_id), "dim"),), indent=1))
        return
    reason = f"{url} {receipt.description}"
    if answer.status == 401:
        reason = REFUSED
    elif answer.status is None:
        reason += f"; `{home.command('serve', '--http')}` takes hooks, and --url names another server"
    elif "message" in document:
        reason = f"{answer.status}: {one_line(str(document['message']), 500)}"
    terminal.say(TerminalLine((name, "  ", (reason, "bad")), "failed"))


def _build_url(server: str, hook: Hook) -> str:
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArguments(f"--url {server[:200]!r} is not the address of a server, such as http://127.0.0.1:8765")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/hooks/{hook.name}"

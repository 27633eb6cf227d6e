"""`POST /hooks/NAME` over real HTTP: what starts a plan once, and what is refused without a word."""

import base64
import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from pydantic import JsonValue
from standardwebhooks.webhooks import Webhook

import planwarden
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.ports.store import SystemKey
from planwarden.server.notifications.messages import sign_message
from planwarden.server.transports import hooks as hooks_module
from planwarden.storage.opening import open_store
from tests.kit import Settings, load_settings, plan, requirement, save_plan, tool_step
from tests.server.cli.support import CommandResult, run_in_process
from tests.server.mcp.http_support import serving
from tests.support.receiver import reply_with, serve_receiver

KEY = bytes(range(32))
BODY = b'{"number": "6*7"}'
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
CONFIGURATION = """
[hooks]
orders = { plan = "order", secret_env = "ORDERS_SECRET" }
silent = { plan = "order", secret_env = "NOT_SET" }
gone = { plan = "deleted", secret_env = "ORDERS_SECRET" }
"""
NUMBER: JsonValue = {"$from": "inputs", "pointer": "/event/number"}
PLAN: dict[str, Any] = {
    "inputs": {"type": "object", "properties": {"event": {"type": "object", "required": ["number"]}}},
    **plan(tool_step("sum", "calculator", {"expression": NUMBER})),
}


def make_settings(home: Path) -> Settings:
    save_plan(home, "order", PLAN)
    (home / "planwarden.toml").write_text(CONFIGURATION)
    return load_settings(home=home, environment={"ORDERS_SECRET": SECRET})


def sign(body: bytes, message_id: str = "msg_1", *, at: float | None = None, key: bytes = KEY) -> dict[str, str]:
    timestamp = str(int(time.time() if at is None else at))
    signature = sign_message(key, message_id, timestamp, body)
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}


@dataclass(frozen=True)
class Hooks:
    """A server with hooks, and who posts to it."""

    settings: Settings
    client: httpx2.AsyncClient

    async def post(
        self, content: Any = BODY, headers: dict[str, str] | None = None, hook: str = "orders"
    ) -> httpx2.Response:
        """Post with these headers, or a right signature."""
        return await self.client.post(f"/hooks/{hook}", content=content, headers=headers or sign(content))

    async def count_runs(self) -> int:
        async with open_store(self.settings.store) as store:
            return len(await store.executions(None, 100))


@asynccontextmanager
async def serve(settings: Settings) -> AsyncGenerator[Hooks]:
    async with serving(settings) as address, httpx2.AsyncClient(base_url=address.removesuffix("/mcp")) as client:
        yield Hooks(settings, client)


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncGenerator[Hooks]:
    async with serve(make_settings(tmp_path)) as opened:
        yield opened


@requirement("hook:starts")
async def test_a_signed_request_starts_the_plan_with_its_body_as_event(hooks: Hooks) -> None:
    timestamp = time.time()
    signature = Webhook(SECRET).sign("msg_1", datetime.fromtimestamp(timestamp, UTC), BODY.decode())
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(timestamp)), "webhook-signature": signature}
    answer = await hooks.post(BODY, headers)
    assert answer.status_code == 200
    run = answer.json()
    assert run.keys() == {"threadId", "executionId", "status"}
    async with open_store(hooks.settings.store) as store:
        with anyio.fail_after(60):
            while (header := await store.header(run["executionId"])) is None or header.status == "running":
                await anyio.lowlevel.checkpoint()
        recorded = await store.read(run["executionId"])
    assert header.principal == "local" and header.status == "completed"
    assert "42" in repr(recorded)


@requirement("hook:once")
async def test_a_replayed_id_also_eight_times_at_once_is_answered_with_the_run_that_it_started(hooks: Hooks) -> None:
    headers = sign(BODY)
    later, other = sign(BODY, at=time.time() + 60), b'{"number": "1"}'
    posts = ((BODY, headers), (BODY, headers), (BODY, later), (other, sign(other)))
    answers = [await hooks.post(body, signed) for body, signed in posts]

    async def post() -> None:
        answers.append(await hooks.post(BODY, headers))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(post)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["executionId"] for answer in answers}) == 1 == await hooks.count_runs()
    another = await hooks.post(BODY, sign(BODY, "msg_2"))
    assert another.json()["executionId"] != answers[0].json()["executionId"]


@requirement("hook:once")
async def test_no_caller_can_take_the_key_of_a_message_and_no_other_plans_run_answers_it(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    save_plan(tmp_path, "other", PLAN)
    digest = hashlib.sha256(b"msg_1").hexdigest()[:32]
    async with planwarden.Warden(settings=settings) as warden:
        for key in (f"hook:orders:{digest}", SystemKey.PREFIX, f"{SystemKey.PREFIX}hook:orders:{digest}"):
            try:
                await warden.run_plan("other", {"event": {"number": "1"}}, key=key)
            except InvalidArguments as error:
                assert key.startswith(SystemKey.PREFIX) and "as only planwarden's own keys do" in error.message
    other = CONFIGURATION.replace('plan = "order"', 'plan = "other"', 1)
    answers: list[httpx2.Response] = []
    for configuration in (CONFIGURATION, other):
        (tmp_path / "planwarden.toml").write_text(configuration)
        async with serve(load_settings(home=tmp_path, environment={"ORDERS_SECRET": SECRET})) as hooks:
            answers.append(await hooks.post())
            runs = await hooks.count_runs()
    assert answers[0].status_code == 200
    assert (answers[1].status_code, answers[1].json()["code"], runs) == (422, "key_conflict", 2)


@requirement("hook:refused")
async def test_what_is_not_signed_for_the_hook_gets_401_and_no_word(hooks: Hooks) -> None:
    signed = sign(BODY)
    now = time.time()
    refused: list[tuple[str, bytes, dict[str, str]]] = [
        ("orders", BODY, {"accept": "*/*"}),
        *(("orders", BODY, {name: text for name, text in signed.items() if name != left_out}) for left_out in signed),
        ("orders", BODY + b" ", signed),
        ("orders", BODY, {**signed, "webhook-id": "msg_2"}),
        ("orders", BODY, {**signed, "webhook-signature": "v1,"}),
        ("orders", BODY, {**signed, "webhook-signature": signed["webhook-signature"].replace("v1,", "v1a,")}),
        ("orders", BODY, {**signed, "webhook-timestamp": "soon"}),
        ("orders", BODY, sign(BODY, key=bytes(32))),
        ("orders", BODY, sign(BODY, at=now - 600)),
        ("orders", BODY, sign(BODY, at=now + 600)),
        ("orders", BODY, sign(BODY, "x" * 257)),
        ("nobody", BODY, signed),
        ("silent", BODY, sign(BODY, key=b"")),
        ("", BODY, sign(BODY, key=b"")),
        ("orders/", BODY, signed),
    ]
    for name, body, headers in refused:
        answer = await hooks.post(body, headers, name)
        assert (answer.status_code, answer.content) == (401, b""), (name, headers)
    assert (await hooks.client.get("/hooks/orders")).status_code == 405
    assert (await hooks.post(BODY, {**signed, "origin": "https://evil.example"})).status_code == 403
    # One of several signatures is enough.
    several = f"v1,AAAA v1a,BBBB {signed['webhook-signature']}"
    assert (await hooks.post(BODY, {**signed, "webhook-signature": several})).status_code == 200
    assert await hooks.count_runs() == 1


@requirement("hook:refused")
async def test_a_refusal_is_in_the_log_once_a_minute_for_each_hook_without_what_was_sent(
    hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("orders", "nobody") * 3:
        headers = {**sign(BODY), "webhook-signature": "v1,c2VjcmV0"}
        assert (await hooks.post(BODY, headers, name)).status_code == 401
    assert [message for message in caplog.messages if "refused a request" in message] == [
        "hook 'orders' refused a request: it is not signed with the secret of the hook",
        "refused a request for a hook that this server does not have",
    ]


@requirement("hook:bounded")
async def test_a_body_of_more_than_256_kib_is_refused_however_it_comes(hooks: Hooks) -> None:
    large = b'{"number": "1", "x": "' + b"x" * hooks_module.MAX_BODY_BYTES + b'"}'

    async def stream() -> AsyncGenerator[bytes]:
        for start in range(0, len(large), 50_000):
            yield large[start : start + 50_000]

    assert (await hooks.post(large)).status_code == 413
    assert (await hooks.post(stream(), sign(large))).status_code == 413
    assert (await hooks.post(b'{"number": "1", "x": "' + b"x" * 255_900 + b'"}')).status_code == 200
    assert await hooks.count_runs() == 1


@requirement("hook:bounded")
async def test_a_body_that_does_not_come_is_not_waited_for(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "READ_S", 0.0)
    port = hooks.client.base_url.port
    headers = {"host": f"127.0.0.1:{port}", **sign(b"{}"), "content-length": "2"}
    lines = ["POST /hooks/orders HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    async with await anyio.connect_tcp("127.0.0.1", port or 0) as stream:
        await stream.send("\r\n".join(lines).encode())
        with anyio.fail_after(60):
            assert (await stream.receive()).startswith(b"HTTP/1.1 408 ")


@requirement("hook:refused")
def test_the_signature_is_that_of_the_specification() -> None:
    message = ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    assert all(hooks_module.is_signed(key, *message, text) for text in (signature, f"v1,x {signature}"))
    assert not hooks_module.is_signed(key, *message, " ".join(["v1,x"] * 10 + [signature]))
    assert hooks_module.is_timely("a", "100", 400.0) and not hooks_module.is_timely("a", "100", 401.0)
    assert not any(hooks_module.is_timely(name, "100", 100.0) for name in ("", "ß", "a\n", "x" * 257, "a.b"))
    assert not any(hooks_module.is_timely("a", text, 100.0) for text in ("", "-1", "1e2", "١٠٠", "1" * 13, " 100"))


@requirement("hook:send")
async def test_hook_send_starts_the_plan_on_the_running_server_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(hook: str, event: str, *more: str, secret: str = SECRET) -> CommandResult:
        monkeypatch.setenv("ORDERS_SECRET", secret)
        words = ("--home", str(tmp_path), "hook", "send", hook, event, "--url", url, *more)
        return await anyio.to_thread.run_sync(run_in_process, capsys, *words)

    async with serve(make_settings(tmp_path)) as hooks:
        url = str(hooks.client.base_url)
        sent = await send("orders", BODY.decode(), "--json")
        assert (sent.code, sent.json["delivered"]) == (0, True)
        async with open_store(hooks.settings.store) as store:
            assert await store.header(sent.json["executionId"]) is not None
        wrong = f"whsec_{base64.b64encode(bytes(range(1, 33))).decode()}"
        for hook, event, secret, code, said in (
            ("orders", "{}", SECRET, 1, "422: inputs: /event: "),
            ("gone", "{}", SECRET, 1, "503: there is no saved plan 'deleted'"),
            ("orders", "{}", wrong, 1, "401: the server refuses the"),
            ("ordes", "{}", SECRET, 2, "there is no hook 'ordes' (did you mean 'orders'?)"),
            ("silent", "{}", SECRET, 2, "the environment variable NOT_SET is not set"),
            ("orders", '{"a": ', SECRET, 2, "the message is not valid JSON"),
            ("orders", '"\udcff"', SECRET, 2, "the message is not UTF-8"),
        ):
            refused = await send(hook, event, secret=secret)
            assert refused.code == code and said in refused.out + refused.err, refused
        assert await hooks.count_runs() == 1
    gone = await send("orders", "{}")
    assert gone.code == 1 and f"planwarden --home {tmp_path} serve --http" in gone.out
    for text in ("ftp://x", "http://x:99999"):
        refused = await send("orders", "{}", "--url", text)
        assert refused.code == 2 and f"--url {text!r} is not the address of a server, such as" in refused.err
    async with serve_receiver(reply_with(200), reply_with(503)) as receiver:
        for code, said in ((0, "hook orders  delivered"), (1, "answered 503")):
            answered = await send("orders", "{}", "--url", f"http://127.0.0.1:{receiver.port}")
            assert answered.code == code and said in answered.out

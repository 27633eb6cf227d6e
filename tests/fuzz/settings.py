"""What the operator writes: settings files and arguments of commands; and access tokens of an issuer."""

import io
import json
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2

from planwarden.agent.common.errors import PlanwardenError
from planwarden.server.auth.oauth import IssuerCheck
from planwarden.server.auth.settings import HttpSettings
from planwarden.server.cli.output import DONE, FAILED, USAGE
from planwarden.server.main import main
from planwarden.server.settings.catalogue import build_registry
from planwarden.server.settings.configuration import SERVERS_FILE, SETTINGS_FILE, load_settings
from planwarden.storage.clock import SystemClock
from tests.fuzz.entrance import PYTHON_WORDS, Wrong, check_error
from tests.fuzz.inputs import Document, Mutator
from tests.support.issuer import AUDIENCE, Issuer, join_token, split_token

SETTINGS = """
model = "caller"
[tools]
python = []
[tools."calculator"]
risk = "confirm"
effect = "read"
capabilities = ["sums"]
timeout_s = 5.0
answer_within_s = 3600.0
on_timeout = "reject"
remind_after_s = [60.0, 600.0]
escalate_after_s = 1200.0
[approvals]
trust_caller = false
critical = "second"
quorum = 2
approvers = ["ann", "bob"]
open_inbox = "never"
[inbox]
passphrase_file = "secret"
[execution]
maxIterations = 5
taefMaxRetries = 1
toolMode = "strict"
maxSteps = 50
waitSeconds = 1.5
[plans]
folders = [".planwarden/plans"]
as_tools = true
[retention]
days = 30
[http]
auth = "required"
allowed_hosts = ["plan.example.com"]
public_url = "https://plan.example.com"
issuer = "https://idp.example.com"
[servers.files]
trusted = true
start_timeout_s = 5.0
[[notify]]
kind = "ntfy"
url = "https://ntfy.sh/topic"
[otel]
[logging]
format = "json"
level = "warning"
"""
SERVERS: Document = {
    "mcpServers": {
        "files": {"command": "npx", "args": ["-y", "${HOME:-x}"], "env": {"A": "${B}"}, "cwd": "x", "disabled": False},
        "remote": {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${T:-t}"}},
    }
}
TOML_TOKENS = (b"[", b"]", b"=", b'"', b"'''", b"\n", b"\0", b"\xff", b"nan", b"-1", b"1e999", b"{a=1}", b"[[tools]]")
COMMANDS = tuple(
    tuple(shlex.split(line))
    for line in (
        *("show t", "show t --artifact a", "list", "approve s --yes", "reject s --reason no", "tools", "doctor"),
        *("grants list", "grants revoke g", "keys list", "keys revoke k", "audit show --limit 5", "audit export -"),
        *("audit verify --head 1:ab", "prune --older-than 90d --dry-run", "tokens list", "tokens add x --days 5"),
        *("tokens revoke x", "config print codex", "run plan.json --yes", "--version"),
        """call calculator --arguments '{"expression": "1+1"}'""",
    )
)
LONG_RUNNING = frozenset({"serve", "demo", "inbox", "login"})


class SettingsFiles:
    def __init__(self, home: Path) -> None:
        self._home = home

    async def send(self, mutator: Mutator) -> str:
        toml = SETTINGS.encode()
        for _ in range(mutator.random.randrange(3)):
            toml = mutator.damage(toml, TOML_TOKENS) if mutator.chance(0.3) else _change_value(mutator, toml)
        servers = mutator.encode(mutator.mutate(SERVERS, [SERVERS]))
        mutator.sent = (toml, servers)
        return self._load(toml, servers)

    async def check_alive(self) -> None:
        self._write(SETTINGS.encode(), json.dumps(SERVERS).encode())
        load_settings(home=self._home, environment={})

    def _load(self, toml: bytes, servers: bytes) -> str:
        self._write(toml, servers)
        try:
            build_registry(load_settings(home=self._home, environment={"B": "b"}), ())
        except PlanwardenError as error:
            return check_error(error.code, error.message)
        except Exception as error:
            raise Wrong(f"{type(error).__name__}: {error}") from error
        return "ok"

    def _write(self, toml: bytes, servers: bytes) -> None:
        (self._home / SETTINGS_FILE).write_bytes(toml)
        (self._home / SERVERS_FILE).write_bytes(servers)


def _change_value(mutator: Mutator, toml: bytes) -> bytes:
    lines = toml.splitlines() or [b""]
    place = mutator.random.randrange(len(lines))
    key, equals, value = lines[place].partition(b" = ")
    odd = mutator.encode(mutator.odd_value())
    other = mutator.pick([line.partition(b" = ")[2] or b"1" for line in lines])
    if equals:
        choices = (key + equals + odd, key + equals + other, mutator.pick(lines), b"x" + key + equals + value, b"")
        lines[place] = mutator.pick(choices)
    else:
        lines[place] = mutator.pick(lines)
    return b"\n".join(lines)


class Commands:
    """Runs commands in this process, with no terminal and nothing on standard input."""

    def __init__(self, home: Path) -> None:
        self._home = home

    async def send(self, mutator: Mutator) -> str:
        argv = [*mutator.pick(COMMANDS)]
        for _ in range(mutator.random.randrange(3)):
            place = mutator.random.randrange(len(argv) + 1)
            word: str = mutator.pick(mutator.pick(COMMANDS)) if mutator.chance(0.5) else mutator.odd_text()
            # The system passes no zero byte, and lone surrogates only for bytes that are no text.
            word = word.replace("\0", "").replace("\ud800", "\udc80").replace("\udfff", "\udcff")
            argv[place : place + mutator.random.randrange(2)] = [word]
        if LONG_RUNNING.intersection(argv) or not argv or argv[0].startswith("--") or "--home" in argv:
            return "left out"
        mutator.sent = argv
        return await anyio.to_thread.run_sync(self._run, argv)

    async def check_alive(self) -> None:
        if await anyio.to_thread.run_sync(self._run, ["list"]) != str(DONE):
            raise Wrong("`list` failed")

    def _run(self, argv: list[str]) -> str:
        out, wrong, before = (*(io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)), sys.stdin)
        sys.stdin = io.StringIO("")
        try:
            with redirect_stdout(out), redirect_stderr(wrong):
                code = main([*argv, "--home", str(self._home)])
        except SystemExit as error:
            code = error.code
        except Exception as error:
            raise Wrong(f"{type(error).__name__}: {error}") from error
        finally:
            sys.stdin = before
        text, written = (_read_all(stream) for stream in (wrong, out))
        if any(word in text for word in PYTHON_WORDS) or (code in (FAILED, USAGE) and not text + written):
            raise Wrong(f"exit code {code}: {text[-2_000:]!r}")
        return str(code)


def _read_all(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


@asynccontextmanager
async def open_files(home: Path) -> AsyncGenerator[SettingsFiles]:
    yield SettingsFiles(home)


@asynccontextmanager
async def open_commands(home: Path) -> AsyncGenerator[Commands]:
    (home / "plan.json").write_text('{"todoList": [{"id": "a", "description": "x", "toolCalls": [7]}]}')
    # Some commands write files where they are called.
    with chdir(home):
        yield Commands(home)


TOKEN_TOKENS = (b".", b"=", b"-", b"_", b"\xff", b"e30", b"A" * 9_000)


class Tokens:
    """An issuer and a check of its tokens; a changed token must not pass."""

    async def send(self, mutator: Mutator) -> str:
        issuer = Issuer(algorithm=mutator.pick(("ES256", "EdDSA")))
        token = issuer.token()
        header, claims, signature = split_token(token)
        sent = token
        if mutator.chance(0.4):
            sent = mutator.damage(token.encode(), TOKEN_TOKENS).decode("utf-8", "replace")
        elif mutator.chance(0.8):
            sent = _join_odd(mutator.mutate(header), mutator.mutate(claims), signature)
        if mutator.chance(0.4):
            document: Any = mutator.mutate({"keys": [issuer.jwk(), issuer.jwk("k2")]})
            issuer.answer = httpx2.Response(200, content=mutator.encode(document))
        mutator.sent = (sent, issuer.answer and issuer.answer.content)
        settings = HttpSettings(issuer=issuer.url, audience=AUDIENCE, jwks_url="https://idp.example.com/keys")
        async with issuer.client() as client:
            found = await IssuerCheck(settings, AUDIENCE, SystemClock(), client).verify_token(sent)
        if found is not None and split_token(sent)[:2] != (header, claims):
            raise Wrong("a changed token was accepted")
        return "refused" if found is None else "accepted"

    async def check_alive(self) -> None:
        issuer = Issuer(algorithm="ES256")
        async with issuer.client() as client:
            settings = HttpSettings(issuer=issuer.url, audience=AUDIENCE)
            check = IssuerCheck(settings, AUDIENCE, SystemClock(), client)
            if await check.verify_token(issuer.token()) is None:
                raise Wrong("a good token was refused")


def _join_odd(header: Any, claims: Any, signature: str) -> str:
    try:
        return join_token(header, claims, signature)
    except (UnicodeEncodeError, ValueError):
        return f"{json.dumps(header)}.{json.dumps(claims)}.{signature}"


@asynccontextmanager
async def open_tokens(home: Path) -> AsyncGenerator[Tokens]:
    yield Tokens()

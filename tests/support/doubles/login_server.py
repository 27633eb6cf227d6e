"""A downstream MCP server that wants a login, and its authorization server, on a socket of this process."""

import base64
import hashlib
import json
import socket
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import anyio
import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from planwarden.server.inbox.web_server import until_cancelled

INFO = {"name": "double", "version": "1"}


@dataclass
class LoginServer:
    """The requests that it received, and its behaviour."""

    url: str = ""
    request_counts: Counter[str] = field(default_factory=Counter[str])
    """By path."""
    seen: list[str] = field(default_factory=list[str])
    """Authorization headers of MCP requests."""
    scopes: list[str] = field(default_factory=list[str])
    """The requested scopes, one entry for each login."""
    valid: dict[str, str] = field(default_factory=dict[str, str])
    """Scopes by access token."""
    refreshing: set[str] = field(default_factory=set[str])
    lifetime_s: int = 3600
    says_no: bool = False
    is_open: bool = False
    """It answers without a token."""
    wants_more: bool = False
    """A call needs the scope `write`."""
    issuer_host: str | None = None
    """The host of the token endpoint, when it is another one."""
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Fields that are added to a reply or replace its own, by path; None removes a field."""
    broken: dict[str, Response] = field(default_factory=dict[str, Response])
    """Replies by path that replace its own."""
    made: int = 0
    challenges: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def root(self) -> str:
        return self.url.removesuffix("/mcp")

    async def visit(self, url: str) -> None:
        """Visits the address as the browser of a person who agrees."""
        async with httpx2.AsyncClient(follow_redirects=True) as browser:
            await browser.get(url)

    async def resource(self, request: Request) -> Response:
        self.request_counts[request.url.path] += 1
        return self._reply(request, {"resource": self.url, "authorization_servers": [self.root]})

    async def metadata(self, request: Request) -> Response:
        self.request_counts[request.url.path] += 1
        return self._reply(
            request,
            {
                "issuer": self.root,
                "authorization_endpoint": f"{self.root}/authorize",
                "token_endpoint": f"{self.issuer_host or self.root}/token",
                "registration_endpoint": f"{self.root}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
            },
        )

    def _reply(self, request: Request, answer: dict[str, Any], status: int = 200) -> Response:
        path = request.url.path
        if path in self.broken:
            return self.broken[path]
        changed = {**answer, **self.overrides.get(path, {})}
        return JSONResponse({key: value for key, value in changed.items() if value is not None}, status)

    async def register(self, request: Request) -> Response:
        self.request_counts["/register"] += 1
        return self._reply(
            request, {**await request.json(), "client_id": f"client-{self.request_counts['/register']}"}, 201
        )

    async def authorize(self, request: Request) -> Response:
        self.request_counts["/authorize"] += 1
        query = request.query_params
        self.scopes.append(query.get("scope", ""))
        self.made += 1
        code = f"code-{self.made}"
        self.challenges[code] = query["code_challenge"]
        answer = {"error": "access_denied"} if self.says_no else {"code": code}
        answer |= {"state": query["state"], **self.overrides.get("/authorize", {})}
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(answer)}", 302)

    async def token(self, request: Request) -> Response:
        self.request_counts["/token"] += 1
        if "/token" in self.broken:
            return self.broken["/token"]
        form = {key: values[0] for key, values in parse_qs((await request.body()).decode()).items()}
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refreshing:
                return JSONResponse({"error": "invalid_grant"}, 400)
            self.refreshing.remove(form["refresh_token"])
        else:
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            if self.challenges.pop(form["code"]) != base64.urlsafe_b64encode(digest).decode().rstrip("="):
                return JSONResponse({"error": "invalid_grant"}, 400)
        self.made += 1
        access, refresh = f"access-secret-{self.made}", f"refresh-secret-{self.made}"
        self.valid[access] = self.scopes[-1]
        self.refreshing.add(refresh)
        tokens = {"token_type": "Bearer", "access_token": access, "refresh_token": refresh}
        return self._reply(request, {**tokens, "expires_in": self.lifetime_s})

    async def mcp(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        message: dict[str, Any] = json.loads(await request.body())
        given = request.headers.get("authorization", "")
        self.seen.append(given)
        token = given.removeprefix("Bearer ")
        if not self.is_open and token not in self.valid:
            where = f'Bearer resource_metadata="{self.root}/.well-known/oauth-protected-resource/mcp", scope="read"'
            return JSONResponse({"error": "invalid_token"}, 401, headers={"www-authenticate": where})
        is_call = message.get("method") == "tools/call"
        if is_call and self.wants_more and "write" not in self.valid[token]:
            why = {"www-authenticate": 'Bearer error="insufficient_scope", scope="write"'}
            return JSONResponse({"error": "insufficient_scope"}, 403, headers=why)
        return _handle_message(message)


def _handle_message(message: dict[str, Any]) -> Response:
    results: dict[str, dict[str, Any]] = {
        "server/discover": {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            "serverInfo": INFO,
            "ttlMs": 0,
            "cacheScope": "private",
        },
        "tools/list": {
            "tools": [{"name": "note", "inputSchema": {"type": "object"}}],
            "ttlMs": 0,
            "cacheScope": "private",
        },
        "tools/call": {"content": [{"type": "text", "text": "noted"}]},
    }
    envelope: dict[str, Any] = {"jsonrpc": "2.0", "id": message.get("id")}
    found = results.get(message["method"])
    if found is None:
        return JSONResponse({**envelope, "error": {"code": -32601, "message": "Method not found"}})
    return JSONResponse({**envelope, "result": found})


@asynccontextmanager
async def login_server() -> AsyncGenerator[LoginServer]:
    double = LoginServer()
    routes = [
        Route("/.well-known/oauth-protected-resource/mcp", double.resource),
        Route("/.well-known/oauth-authorization-server", double.metadata),
        Route("/.well-known/openid-configuration", double.metadata),
        Route("/register", double.register, methods=["POST"]),
        Route("/authorize", double.authorize),
        Route("/token", double.token, methods=["POST"]),
        Route("/mcp", double.mcp, methods=["GET", "POST", "DELETE"]),
    ]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        double.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        settings = uvicorn.Config(Starlette(routes=routes), log_level="critical", timeout_graceful_shutdown=1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_cancelled, uvicorn.Server(settings), [listener])
            yield double
            tasks.cancel_scope.cancel()

"""The MCP Inspector's page as a host of MCP Apps: it draws our view in its sandbox and talks to our server over HTTP.

Its host side is `AppBridge` of `@modelcontextprotocol/ext-apps`. A second origin serves the view, under the policy that
our resource asks for. Source: https://github.com/modelcontextprotocol/inspector/blob/main/docs/mcp-app-review.md.
"""

import base64
import json
import secrets
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from pydantic import JsonValue

from tests.clients.installed import path_with_node
from tests.clients.roster import INSPECTOR
from tests.clients.stage import Stage
from tests.server.cli.support import Cli, clean_environment, command_line
from tests.support.browser import launch_browser
from tests.support.screen import run_on_screen

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page

WIDE = 200
"""Columns of the screens on which servers print their address, which must stay on one line."""


@dataclass(frozen=True)
class AppHost:
    url: str
    token: str
    server_url: str

    def link(self, tool: str, arguments: dict[str, JsonValue]) -> str:
        """Returns an address that connects to our server and fills in the call; a click on `Open App` makes it."""
        packed = base64.urlsafe_b64encode(json.dumps(arguments).encode()).decode().rstrip("=")
        found = {"serverUrl": self.server_url, "transport": "http", "autoConnect": self.token}
        return f"{self.url}/?{urlencode({**found, 'openApp': tool, 'appArgs': packed})}"


@contextmanager
def run_app_host(stage: Stage) -> Generator[AppHost]:
    """Runs our server over HTTP and the Inspector's page while the block runs. Raises `Unavailable`."""
    binary = INSPECTOR.binary("mcp-inspector")
    web, sandbox, ours = _free_port(), _free_port(), _free_port()
    token = secrets.token_hex(16)
    env = clean_environment({"HOME": str(stage.folder), "PATH": path_with_node()})
    settings = {
        "HOST": "127.0.0.1",
        "CLIENT_PORT": str(web),
        "MCP_SANDBOX_PORT": str(sandbox),
        "MCP_AUTO_OPEN_ENABLED": "false",
        "MCP_INSPECTOR_API_TOKEN": token,
    }
    serve = command_line("--home", str(stage.home), "serve", "--http", "--port", str(ours))
    with (
        run_on_screen(serve, cwd=stage.folder, env=env, columns=WIDE) as server,
        run_on_screen([*binary, "--web"], cwd=stage.folder, env={**env, **settings}, columns=WIDE) as inspector,
    ):
        server.expect(f"http://127.0.0.1:{ours}/mcp")
        inspector.expect(f"http://127.0.0.1:{web}")
        yield AppHost(f"http://127.0.0.1:{web}", token, f"http://127.0.0.1:{ours}/mcp")


@asynccontextmanager
async def open_app(
    host: AppHost, browser_path: str, tool: str, arguments: dict[str, JsonValue]
) -> AsyncGenerator["Page"]:
    async with launch_browser(browser_path) as browser:
        page = await (await browser.new_context(viewport={"width": 1280, "height": 780})).new_page()
        await page.goto(host.link(tool, arguments))
        await page.wait_for_selector('[data-testid="connection-status"][data-status="connected"]')
        await page.get_by_label("Close monitoring sidebar").click()
        await page.get_by_role("button", name="Open App").click()
        yield page


async def find_view(page: "Page") -> "Frame":
    """Returns our view, which is the frame inside the sandbox's frame, when it has drawn its question."""
    sandbox = await page.locator("iframe").element_handle()
    outer = await sandbox.content_frame()
    assert outer is not None
    handle = await outer.locator("iframe").element_handle()
    inner = await handle.content_frame()
    assert inner is not None
    await inner.wait_for_selector("button")
    return inner


def run_to_question(stage: Stage, plan: JsonValue) -> str:
    path = stage.folder / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    result = Cli(stage.home).spawn("run", str(path), "--json")
    assert result.code == 3, result
    return str(result.json["threadId"])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])

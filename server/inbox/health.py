"""`GET /healthz` for proxies and supervisors: `ok` while the process answers, and nothing else; it needs no login."""

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

HEALTH_PATH = "/healthz"


class HealthMiddleware:
    """Answers the health check itself; everything else goes on to `app`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != HEALTH_PATH:
            await self._app(scope, receive, send)
            return
        is_read = scope["method"] in ("GET", "HEAD")
        answer = PlainTextResponse(
            "ok\n" if is_read else "", 200 if is_read else 405, headers={} if is_read else {"allow": "GET, HEAD"}
        )
        await answer(scope, receive, send)

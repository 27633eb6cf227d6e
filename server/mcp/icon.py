"""The icon that hosts may show beside the server, its tools and its prompts: one small drawing in a `data:` address.

Source: https://modelcontextprotocol.io/specification/2026-07-28/basic#icons (`data:` addresses are allowed).
"""

from base64 import b64encode

from mcp.types import Icon

_DRAWING = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#1f6f5f"/>'
    b'<path d="M9 17l5 5 9-11" fill="none" stroke="#fff" stroke-width="3"/></svg>'
)

ICONS = [
    Icon(src=f"data:image/svg+xml;base64,{b64encode(_DRAWING).decode()}", mime_type="image/svg+xml", sizes=["any"])
]
"""No script and no outside address; readable on light and dark backgrounds."""

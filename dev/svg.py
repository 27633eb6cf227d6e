"""What the drawn pictures of measurements share: colours, style and frame."""

from collections.abc import Iterable
from html import escape

LEFT = 64
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#334155}.title{font-size:14px;font-weight:600}"
    ".axis{stroke:#cbd5e1;fill:none}.line{fill:none;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#cbd5e1}.axis{stroke:#475569}}"
)


def frame(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """Returns the whole picture, `width` by `height` units, with its title above the parts."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>',
    )
    return "\n".join([*head, *parts, "</svg>", ""])

"""Takes pictures of pages, and writes them as small files."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PIL import Image

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

SIZES = {"desktop": (1120, 820), "phone": (390, 844)}
MARGIN = 16
"""Pixels below what a picture ends with."""
COLORS = 256


async def open_page(browser: "Browser", size: str, scheme: Literal["light", "dark"]) -> "Page":
    """Open a window of one of `SIZES` in a context of its own."""
    width, height = SIZES[size]
    is_phone = size == "phone"
    context = await browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        device_scale_factor=2 if is_phone else 1,
        is_mobile=is_phone,
        has_touch=is_phone,
        timezone_id="Europe/Berlin",
    )
    return await context.new_page()


async def shoot(page: "Page", path: Path, until: str | None = None) -> None:
    """Take what is on the screen; with `until`, the page down to the end of the first element that this selects."""
    if until is None:
        return save(await page.screenshot(), path)
    box = await page.locator(until).first.bounding_box()
    assert box is not None and page.viewport_size is not None, until
    width, height = page.viewport_size["width"], box["y"] + box["height"] + MARGIN
    picture = await page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    return save(picture, path)


def save(picture: bytes, path: Path) -> None:
    """Write the picture with 256 colours: a third of the bytes, and no visible difference."""
    image = Image.open(BytesIO(picture))
    is_opaque = image.mode != "RGBA" or image.getchannel("A").getextrema() == (255, 255)
    # The octree joins tones that are near each other, such as a page and its cards, but alone knows transparency.
    method = Image.Quantize.MEDIANCUT if is_opaque else Image.Quantize.FASTOCTREE
    image = image.convert("RGB") if is_opaque else image
    image.quantize(COLORS, method=method, dither=Image.Dither.NONE).save(path, optimize=True)

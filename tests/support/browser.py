"""The browser of this machine, and the marks of tests that need one."""

import importlib.util

import pytest

from tests.support.scene import find_chromium

CHROMIUM = find_chromium()
NEEDS_CHROMIUM = [
    pytest.mark.anyio,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine; `make browser` installs it"),
]
DRIVES_CHROMIUM = [
    *NEEDS_CHROMIUM,
    pytest.mark.browser,
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
]

"""Where the pages of the inbox are."""

from urllib.parse import urlencode

INBOX_PATH = "/inbox"
"""The path of the inbox; every page is below it."""


def build_pairing_url(url: str, code: str, target: str = INBOX_PATH) -> str:
    """A link that opens the inbox in one browser, once; the browser then goes to `target`."""
    return f"{url}/pair?{urlencode({'code': code, 'next': target})}"

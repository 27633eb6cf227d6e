"""Where the value of an argument leads: an address to a host, a path into a folder.

A tool may read the value differently from this module. So this module reads only what every program reads in the
same way. For everything else the answer is None: unknown.
"""

import ipaddress
import os.path
import re
import unicodedata
from collections.abc import Sequence

from planwarden.agent.ports.policy import PathsNeeded, RealPaths

MAX_CHARS = 4_096
"""The most characters of an address or a path; for a longer one the answer is None."""
_HOST = r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
# Under other schemes the request may go elsewhere: `file` and `javascript` reach no host, and for databases the query
# may name another host.
_SCHEME = r"(?i:https?|wss?|ftps?|sftp|ssh|git|rsync|git\+https?|git\+ssh)"
_URL = _SCHEME + "://" + _HOST + r"(:[0-9]{0,5})?([/?#][^\x00-\x20\x7f]*)?"
_EMAIL = r"[A-Za-z0-9.#$&'*+/=?^_`{|}~-]{1,64}@" + _HOST
_NAME = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
_NUMBER = r"[0-9]+|0x[0-9a-f]*"


def find_host(text: str) -> str | None:
    """Return the host of an e-mail address, or of an absolute URL whose scheme says that the request goes to its host.

    The host is in its normal spelling, in lower case. Return None for other texts, or if programs disagree on the host.
    """
    if len(text) > MAX_CHARS:
        return None
    match = re.fullmatch(_URL, text) or re.fullmatch(_EMAIL, text)
    return None if match is None else normalise_host(match["host"])


def normalise_host(host: str) -> str | None:
    """Return a host's name or address in its normal spelling; None if programs read it in different ways."""
    if host.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(host[1:-1])}]"
        except ValueError:
            return None
    name = host.lower().removesuffix(".")
    if not re.fullmatch(_NAME, name) or len(name) > 253:
        return None
    if re.fullmatch(_NUMBER, name.rpartition(".")[2]):
        # 127.1, 0x7f.1 and 2130706433 are 127.0.0.1 for some programs.
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            return None
    return name


def is_on_domain(host: str, domains: Sequence[str]) -> bool:
    """Return whether the host is one of the domains or below one."""
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def is_in_folder(path: str, folders: Sequence[str], paths: RealPaths | None, *, loosens: bool | None) -> bool | None:
    """Return whether the path lies below one of the folders; None if that is not known.

    Links and the case of letters may leave the answer open. Then a rule that `loosens` gets False, a strict rule gets
    True, and a rule that may be either (`loosens` is None) gets None: so no rule lets too much pass. For a strict rule
    alone, a folder lies below itself.

    Raises:
        PathsNeeded: `paths` lacks the path or a folder.
    """
    if paths is None or "\0" in path or len(path) > MAX_CHARS or not os.path.isabs(path):
        return None
    needed_paths = frozenset((path, *folders))
    if missing := needed_paths - paths.keys():
        raise PathsNeeded(missing)
    real, real_folders = paths[path], [paths[folder] for folder in folders]
    if real is None or None in real_folders:
        return None
    existing_folders = [folder for folder in real_folders if folder is not None]
    plain_path = normalise_path(path)
    is_surely_inside = _is_below(plain_path, (*folders, *existing_folders)) and _is_below(real, existing_folders)
    every = [_fold(folder) for folder in (*folders, *existing_folders)]
    may_be_inside = any(spelled in every or _is_below(spelled, every) for spelled in (_fold(plain_path), _fold(real)))
    if loosens is None:
        return is_surely_inside if is_surely_inside == may_be_inside else None
    return is_surely_inside if loosens else may_be_inside


def normalise_path(path: str) -> str:
    """Return an absolute path without `.`, `..` and doubled separators. No link is followed."""
    # POSIX lets two separators at the start mean something else, but no current system makes use of that.
    return os.path.normpath(os.path.sep + path.lstrip(os.path.sep) if path.startswith(os.path.sep) else path)


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path != folder and path.startswith(folder.rstrip(os.path.sep) + os.path.sep) for folder in folders)


def _fold(path: str) -> str:
    """Return the same text for paths that some file systems treat as the same."""
    return unicodedata.normalize("NFC", path).casefold()

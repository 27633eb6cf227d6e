"""Opens the SQLite file: refuses what must not be touched, creates what is missing, migrates. Also explains errors.

Refused before SQLite opens the file: network file systems, files that are not planwarden's, files written by a newer
planwarden. The file is created with mode 0600 in a folder of mode 0700. SQLite's own rules for WAL and synchronous
apply: https://sqlite.org/wal.html, https://sqlite.org/pragma.html#pragma_synchronous.
"""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path

from planwarden.agent.common.errors import StoreError, StoreReplaced
from planwarden.storage.location import MARK_TABLE, MARKED, MoveMark
from planwarden.storage.sql.schema import load_migrations, load_statements, refuse_unreplayable

DIALECT = (
    (r"\$(\d+)", r"?\1"),
    (r"::\w+", ""),
    (r' COLLATE "C"', ""),
    # Nobody else writes while a transaction writes.
    (r"\s+FOR UPDATE( SKIP LOCKED)?", ""),
    (r"OVERRIDING SYSTEM VALUE ", ""),
    (r"\bnext_number\(\)", "(SELECT coalesce(max(number), 0) + 1 FROM executions)"),
    (r"\bclock\((\?\d+)\)", r"\1"),
    (r"\bjson_array_elements_text\((\?\d+)\)", r"value FROM json_each(\1)"),
    # `min` of several values is NULL where one of them is.
    (r"\bleast\(([\w.]+), ([\w.]+)\)", r"min(coalesce(\1, \2), coalesce(\2, \1))"),
    (r"\bgreatest\(", "max("),
    (r"\bstrpos\(", "instr("),
    (r"\bchr\(", "char("),
    (r"\bbigint GENERATED ALWAYS AS IDENTITY\b|\bbigint\b|\bboolean\b", "INTEGER"),
    (r"\bdouble precision\b", "REAL"),
    (r"\bbytea\b", "BLOB"),
    (r"^\);$", ") STRICT;"),
)
SQL: dict[str, str] = load_statements(Path(__file__).parent, DIALECT)

APPLICATION_ID = 0x706C7764  # "plwd"
WAL_RESET_FIXED = (3, 51, 3)
"""The first SQLite version that cannot corrupt a WAL file with several writers (https://sqlite.org/changes.html)."""

BUSY_TIMEOUT_MS = 10_000
FAULTS = (sqlite3.Error, UnicodeError)
"""What the driver raises; `UnicodeError` when it reads damaged text, or writes an id that is not Unicode text."""

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb.*|afpfs|afs|ceph|gluster.*|lustre|9p|fuse\.(sshfs|s3fs|rclone|glusterfs.*)|webdav|davfs"
)


def needs_write_lock() -> bool:
    return sqlite3.sqlite_version_info < WAL_RESET_FIXED


def prepare(path: Path, *, mounts: Callable[[], str] | None = None) -> None:
    """Create the folder and the file with private modes, and check that planwarden may use them.

    Raises:
        StoreError: a network file system, somebody else's file, a newer schema, or no permission.
    """
    folder = path.parent
    _check_header(path)
    try:
        if not folder.exists():
            # Another process may be making it at the same time.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif sys.platform != "win32" and _needs_tighter_mode(folder):
            folder.chmod(0o700)
    except OSError as error:
        raise StoreError(f"cannot use the folder {str(folder)!r}: {error.strerror}; set PLANWARDEN_HOME") from error
    file_system = _file_system(folder, mounts or _mounts)
    if file_system is not None and _NETWORK.fullmatch(file_system):
        raise StoreError(
            f"{str(folder)!r} is on a network file system ({file_system}), where SQLite's locks cannot be relied on; "
            "set PLANWARDEN_HOME to a local folder"
        )
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(f"cannot open {str(path)!r} for writing: {error.strerror}") from error


def connect(path: Path, *, readonly: bool = False) -> sqlite3.Connection:
    """Return a connection with the pragmas that the durability contract needs; transactions are begun by hand.

    Raises:
        StoreError: SQLite cannot use the file.
    """
    try:
        with ExitStack() as opened:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
            opened.enter_context(closing(connection))
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            if readonly:
                connection.execute("PRAGMA query_only = ON")
            else:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                if mode != "wal":
                    raise StoreError(f"{str(path)!r} cannot use write-ahead logging (journal mode is {mode!r})")
                for setting in ("synchronous = FULL", "fullfsync = ON", "trusted_schema = OFF"):
                    connection.execute(f"PRAGMA {setting}")
            opened.pop_all()
    except FAULTS as error:
        raise to_store_error(error, path) from error
    return connection


def leave_log(connection: sqlite3.Connection) -> None:
    """Ensure that closing `connection` does not move the log into the database; do nothing before Python 3.12."""
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, True)


class FileIdentity:
    """Remembers which file is open, to notice when a restored backup takes its place, or when the home is emptied.

    SQLite goes on with the file that it opened, even if nobody else can open that file now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened = self._read()

    def check(self) -> None:
        """Raise `StoreReplaced` when the path no longer leads to the file that was opened."""
        if self._read() != self._opened:
            raise StoreReplaced(
                f"{str(self._path)!r} was replaced or removed while planwarden used it, and nothing more is written; "
                "end every planwarden process that uses it, then start again"
            )

    def _read(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema to the newest version in one transaction; do nothing if it already has that version.

    Raises:
        StoreError: the file belongs to another application or a newer planwarden, `planwarden move` marked it, or the
            log of an execution that can go on does not replay; the file was left as it was.
    """
    steps = migrations()
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            mark = read_mark(connection)
            if mark is not None:
                raise StoreError(mark.explain(repr(str(path))))
            current = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if current > len(steps):
                raise _newer(path, current, len(steps))
            if current == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                raise _foreign(path)
            _upgrade(connection, path, current, steps)
            if current == 0:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if current < len(steps):
            # The version must be in the file's own header, where it is read before SQLite opens the file.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except FAULTS as error:
        raise to_store_error(error, path) from error


def _upgrade(connection: sqlite3.Connection, path: Path, current: int, steps: list[str]) -> None:
    """Run the steps after `current`; in a file with logs, check that they replay before anything is committed."""
    for number, script in enumerate(steps[current:], current + 1):
        for statement in _statements(script):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
    if 0 < current < len(steps):
        refuse_unreplayable(lambda name, values: connection.execute(SQL[name], values).fetchall(), repr(str(path)))


def to_store_error(error: Exception, path: Path) -> StoreError:
    """Return SQLite's error as a `StoreError` that says what happened to which file, and what to do."""
    code = _find_code(error)
    if isinstance(error, UnicodeError):
        code = sqlite3.SQLITE_CORRUPT if isinstance(error, UnicodeDecodeError) else sqlite3.SQLITE_MISMATCH
    failed = StoreError(_EXPLANATIONS.get(code, "{where!r}: {error}").format(where=str(path), error=error))
    failed.__cause__ = error
    return failed


_IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_READ_ONLY = "{where!r} is read-only; check its owner and mode, or set PLANWARDEN_HOME"
_DAMAGED = "{where!r} is damaged ({error}); restore a backup, or move the file away to start afresh"
_UNCERTAIN = "the disk reported an error for {where!r} ({error}); nothing after the last answer is certain"
_EXPLANATIONS = {
    **dict.fromkeys(_IN_USE, "{where!r} is locked by another program ({error}); close it and try again"),
    **dict.fromkeys((sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM), _READ_ONLY),
    **dict.fromkeys((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB), _DAMAGED),
    sqlite3.SQLITE_FULL: "the disk is full: {where!r} could not grow; free some space, nothing was lost",
    sqlite3.SQLITE_MISMATCH: "{where!r} cannot hold an id that is not Unicode text ({error}); nothing was stored",
    sqlite3.SQLITE_CANTOPEN: "cannot open {where!r}; check that the folder exists and is writable",
    sqlite3.SQLITE_IOERR: _UNCERTAIN,
}


def is_busy(error: Exception) -> bool:
    """Return True when somebody else uses the file, so that the same statement may succeed later."""
    return _find_code(error) in _IN_USE


def _find_code(error: Exception) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def open_copy(target: Path) -> sqlite3.Connection:
    """Return a connection to a new file for a backup, mode 0600. Raises `StoreError` when the file exists."""
    try:
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise StoreError(f"{str(target)!r} exists already; choose another name") from None
    except OSError as error:
        raise StoreError(f"cannot write {str(target)!r}: {error.strerror}") from error
    return sqlite3.connect(target, check_same_thread=False)


def latest_version() -> int:
    return len(migrations())


@cache
def migrations() -> list[str]:
    """Return the scripts that bring a file from one schema to the next, oldest first."""
    return load_migrations(Path(__file__).parent, DIALECT)


def _statements(script: str) -> list[str]:
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements


def _check_header(path: Path) -> None:
    """Refuse a file whose header shows that it is not usable here (https://sqlite.org/fileformat.html, 1.3)."""
    try:
        if path.exists() and not path.is_file():
            raise StoreError(f"{str(path)!r} is not a regular file, so it cannot be a planwarden database")
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if not header:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise StoreError(f"{str(path)!r} is not a planwarden database, or it is damaged; it was left untouched")
    version, application = int.from_bytes(header[60:64], "big"), int.from_bytes(header[68:72], "big")
    # After a crash before the first migration, a file does not have an application, a version or a schema yet.
    is_blank = application == version == int.from_bytes(header[40:44], "big") == 0
    if application != APPLICATION_ID and not is_blank:
        raise _foreign(path)
    # A file with the mark of a move passes here: `migrate` refuses it later, and can say what the mark says.
    if latest_version() < version != MARKED:
        raise _newer(path, version, latest_version())


def read_mark(connection: sqlite3.Connection) -> MoveMark | None:
    """Return the mark, or None for a store that can be used."""
    if int(connection.execute("PRAGMA user_version").fetchone()[0]) != MARKED:
        return None
    move_id, is_source, location, _ = connection.execute(f"SELECT * FROM {MARK_TABLE}").fetchone()
    return MoveMark(move_id, bool(is_source), location)


def _foreign(path: Path) -> StoreError:
    return StoreError(f"{str(path)!r} belongs to another application; it was left untouched")


def _newer(path: Path, version: int, supported: int) -> StoreError:
    return StoreError(
        f"{str(path)!r} was written by a newer planwarden (schema {version}, this one knows {supported}); "
        "update planwarden; the file was left untouched"
    )


def _needs_tighter_mode(folder: Path) -> bool:
    """Return whether to tighten the mode of the folder: only if it is empty, the user's own, and open to others."""
    status = folder.stat()
    return bool(status.st_mode & 0o077) and status.st_uid == os.getuid() and not any(folder.iterdir())


def _mounts() -> str:
    """Return mount points and types, one `POINT TYPE` a line; empty where the system does not tell."""
    if sys.platform.startswith("linux"):
        with suppress(OSError):
            lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
            return "\n".join(f"{line.split()[4]} {line.split(' - ')[1].split()[0]}" for line in lines if " - " in line)
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            listing = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=False).stdout
            return "\n".join(re.sub(r"^.* on (.+) \((\w+).*$", r"\1 \2", line) for line in listing.splitlines())
    return ""


def _file_system(folder: Path, mounts: Callable[[], str]) -> str | None:
    """Return the type of the innermost mount that holds the folder; None where that is unknown."""
    real = os.path.realpath(folder)
    holding: list[tuple[int, str]] = []
    for line in mounts().splitlines():
        point, _, kind = line.rpartition(" ")
        point = point.replace("\\040", " ")
        if real == point or real.startswith(point.rstrip("/") + "/"):
            holding.append((len(point), kind))
    return max(holding, key=lambda mount: mount[0])[1] if holding else None

"""One file with a saved plan: what it holds, how it is read, and everything that makes it unusable.

A file is one flat object: `title`, `description`, `inputs` (a JSON Schema) and `todoList`, in YAML or JSON. A file may
come from a hostile author, such as that of a repository: files are limited in size, and devices and pipes are not
read. Error messages may quote the file, so only the operator sees them: a model learns only that the plan is unusable.
"""

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Literal, cast

import msgspec

from planwarden.agent.common.canonical import digest, read_json
from planwarden.agent.common.errors import InvalidArguments
from planwarden.agent.common.form import describe
from planwarden.agent.common.struct import JsonValue
from planwarden.agent.common.suggestions import describe_unknown_keys
from planwarden.agent.core.plan.inputs import find_inputs_faults
from planwarden.agent.core.plan.plan import STEPS_KEYS
from planwarden.agent.core.plan.plan_parser import parse_plan

MAX_FILE_BYTES = 512 * 1024
MAX_NAME_CHARS = 64
MAX_TITLE_CHARS = 200
MAX_DESCRIPTION_CHARS = 2_000
MAX_INPUTS = 100
MAX_QUOTED_CHARS = 300
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
SUFFIXES = (".yaml", ".json")
INPUTS, TITLE, DESCRIPTION = "inputs", "title", "description"
KEYS = (TITLE, DESCRIPTION, INPUTS, *STEPS_KEYS)

FileStamp = tuple[int, int, int, int, int]
"""Device, inode, size and times of a file: a file that changed has another stamp."""


class SavedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that a file holds."""

    name: str
    """The file's name without its ending."""
    title: str | None
    description: str | None
    inputs: dict[str, JsonValue] | None
    """JSON Schema of the inputs of a run; None if the plan takes no inputs."""
    document: dict[str, JsonValue]
    """The plan as `execute_plan` takes it: the file's content without title and description."""
    digest: str
    """The version: SHA-256 of the whole content, whatever its layout, and the same in YAML and JSON."""
    path: Path
    source: str
    """The folder that holds the file: `home`, or the folder as the operator wrote it in `[plans] folders`."""

    @property
    def steps(self) -> list[dict[str, JsonValue]]:
        """The steps as the file has them, under either name of their list."""
        return cast("list[dict[str, JsonValue]]", self.document.get("todoList", self.document.get("steps")))


class PlanFault(msgspec.Struct, frozen=True):
    """A file, or a folder, that cannot be used."""

    name: str
    """The name of the plan that the file should hold; empty for a folder."""
    path: Path
    reason: str


def is_plan_name(text: str) -> bool:
    """Return whether a saved plan can have this name: letters, digits, `-` and `_`, at most 64."""
    return NAME.fullmatch(text) is not None


def read_plan_file(path: Path, source: str) -> tuple[SavedPlan, FileStamp]:
    """Return the plan in the file, and the stamp of what was read.

    Raises:
        PlanwardenError: the file cannot be used; the message says why, without the file's name.
    """
    data, stamp = _read_bytes(path)
    document = parse_text(data, "yaml" if path.suffix == ".yaml" else "json")
    return build_saved_plan(path.stem, document, path=path, source=source), stamp


def parse_text(data: bytes, form: Literal["yaml", "json"]) -> JsonValue:
    """Return the value that the bytes of a file hold. Raises `InvalidArguments` or `LimitExceeded`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidArguments("not UTF-8 text") from None
    if form == "json":
        return read_json(text)
    from planwarden.server.plans.yaml_text import read_yaml

    return read_yaml(text)


def build_saved_plan(name: str, document: JsonValue, *, path: Path, source: str) -> SavedPlan:
    """Return the plan that a document holds. What depends on tools or on a thread is checked when the plan runs.

    Raises:
        PlanwardenError: the document holds no usable plan; the message says why.
    """
    if not isinstance(document, dict):
        raise InvalidArguments(f"it is not one object with a todoList, but {describe(document)}")
    unknown = document.keys() - set(KEYS)
    if unknown:
        raise InvalidArguments(describe_unknown_keys("it", unknown, [key for key in KEYS if key != "steps"]))
    version = digest(document, context="saved plan")
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidArguments("it has text that is not Unicode: half of a surrogate pair") from None
    present = [key for key in STEPS_KEYS if key in document]
    if len(present) != 1:
        raise InvalidArguments("it has both 'todoList' and 'steps'" if present else "it has no 'todoList'")
    steps = document[present[0]]
    if not isinstance(steps, list) or not steps:
        raise InvalidArguments(f"'{present[0]}' is not a list of steps")
    saved = SavedPlan(
        name=name,
        title=_read_text(document, TITLE, MAX_TITLE_CHARS),
        description=_read_text(document, DESCRIPTION, MAX_DESCRIPTION_CHARS),
        inputs=_read_inputs(document.get(INPUTS)),
        document={key: value for key, value in document.items() if key not in (TITLE, DESCRIPTION)},
        digest=version,
        path=path,
        source=source,
    )
    # The operator may change the limit on steps while the file stays the same, so each run checks that limit.
    parse_plan(saved.document, author="caller", tools=None, max_steps=len(steps))
    return saved


def _read_text(document: dict[str, JsonValue], key: str, limit: int) -> str | None:
    text = document.get(key)
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip():
        raise InvalidArguments(f"'{key}' is not a text")
    if len(text) > limit:
        raise InvalidArguments(f"'{key}' has {len(text)} characters, the limit is {limit}")
    return text.strip()


def _read_inputs(schema: JsonValue) -> dict[str, JsonValue] | None:
    """Return the schema of the inputs, if any. Raises `InvalidArguments` if it is not a usable schema of an object."""
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise InvalidArguments("'inputs' is not a JSON Schema of an object")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise InvalidArguments("'inputs.properties' is not an object")
    if len(properties) > MAX_INPUTS:
        raise InvalidArguments(f"'inputs' has {len(properties)} properties, the limit is {MAX_INPUTS}")
    faults = list(find_inputs_faults(schema))
    if faults:
        raise InvalidArguments("; ".join(faults)[:MAX_QUOTED_CHARS])
    return schema


def _read_bytes(path: Path) -> tuple[bytes, FileStamp]:
    # Open without waiting, because a pipe might never get a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
        try:
            before = os.fstat(descriptor)
            _check_kind(before)
            data = b""
            while len(data) <= MAX_FILE_BYTES and (piece := os.read(descriptor, MAX_FILE_BYTES + 1)):
                data += piece
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InvalidArguments(describe_os_error(error)) from None
    stamp = stamp_of(before)
    if len(data) != before.st_size or stamp_of(after) != stamp:
        raise InvalidArguments("it changed while it was read")
    return data, stamp


def _check_kind(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise InvalidArguments("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise InvalidArguments("it is not a file, but a device or a pipe")
    if status.st_size > MAX_FILE_BYTES:
        raise InvalidArguments(f"it has {status.st_size} bytes, the limit is {MAX_FILE_BYTES}")


def stamp_of(status: os.stat_result) -> FileStamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def describe_os_error(error: OSError) -> str:
    """Return why something cannot be opened or read."""
    if error.errno == errno.ELOOP:
        return "its links lead in a circle"
    return f"it cannot be read: {error.strerror or 'the system refuses'}"

"""The operator's `[[promises]]` tables: what must have been called before a host may say that it is done."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from planwarden.agent.approval.conditions import RuleFault
from planwarden.agent.common.errors import InvalidArguments
from planwarden.server.settings.faults import Table, read_tables
from planwarden.tools.guarded.promises import CallPattern, Promise, check_pattern

MAX_PROMISES = 50
MAX_FILE_CHARS = 100_000
PROMISES_FILE = ".planwarden/promises.toml"
"""The file's path below a folder. Only the text that a person trusted counts, even if the file has changed since."""
Glob = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.:\-/*?]+$")]


class CallSettings(Table):
    """Which calls `when` and `requires` mean."""

    tool: Glob | Annotated[list[Glob], Field(min_length=1, max_length=20)]
    """Tools, or globs, with the host (`claude-code/Bash`) or without it (`Bash`)."""
    matches: Annotated[dict[str, Any], Field(max_length=20)] = Field(default_factory=dict[str, Any])
    """Conditions on arguments, written like `when` of [rules](../rules.md#when)."""

    def build(self) -> CallPattern:
        """Return the pattern of the calls. Raises `RuleFault` if it cannot be used."""
        pattern = CallPattern((self.tool,) if isinstance(self.tool, str) else tuple(self.tool), self.matches)
        check_pattern(pattern)
        return pattern


class PromiseSettings(Table):
    """One `[[promises]]` table."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    """The promise's name in messages to people. Promises of one file have different names."""
    when: CallSettings
    """Once such a call has succeeded in a session, the promise is owed."""
    requires: CallSettings
    """The call that keeps the promise."""
    after: Literal["last", "first"] = "last"
    """Whether the call that keeps the promise must come after the `last` or the `first` call that made it owed."""
    mode: Literal["strict", "advisory"] = "strict"
    """`strict` sends the agent back, `advisory` only tells the person."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """How often a stop is refused before a person is asked."""
    because: Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    """Why, in one line that the agent reads."""

    @model_validator(mode="after")
    def _check_patterns(self) -> "PromiseSettings":
        for key, call in (("when", self.when), ("requires", self.requires)):
            try:
                call.build()
            except RuleFault as error:
                raise RuleFault(f"{key}.matches {error}") from None
        return self

    def build(self, source: str = "") -> Promise:
        """Return the promise. `source` is the folder that its file belongs to, empty for the operator's own file."""
        plain = self.model_dump(exclude={"when", "requires"})
        return Promise(**plain, when=self.when.build(), requires=self.requires.build(), source=source)


def _check_names(promises: list[PromiseSettings]) -> list[PromiseSettings]:
    """Return the promises. Raises `ValueError` if two share a name, because people waive a promise by its name."""
    names = Counter(promise.name for promise in promises)
    if twice := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"two promises have the name {twice[0]!r}")
    return promises


PromiseList = Annotated[list[PromiseSettings], Field(max_length=MAX_PROMISES), AfterValidator(_check_names)]
"""The promises of one file."""


class PromiseTables(Table):
    """A folder's `.planwarden/promises.toml`."""

    promises: PromiseList


def read_folder_file(folder: str) -> str:
    """Return the text of the folder's promises. Raises `InvalidArguments` if it cannot be read or is too long."""
    path = Path(folder, PROMISES_FILE)
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_FILE_CHARS + 1)
    except UnicodeDecodeError:
        raise InvalidArguments(f"{str(path)!r} is not UTF-8 text") from None
    except OSError as error:
        raise InvalidArguments(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    if len(text) > MAX_FILE_CHARS:
        raise InvalidArguments(f"{str(path)!r} has more than {MAX_FILE_CHARS} characters")
    return text


def read_promises(text: str, source: str) -> tuple[Promise, ...]:
    """Return the promises in the text of a folder's file. Raises `InvalidArguments` if the text is not usable."""
    try:
        tables = read_tables(tomllib.loads(text), PromiseTables, source)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidArguments(f"{source!r} is not valid TOML: {str(error)[:200]}") from None
    return tuple(table.build(source) for table in tables.promises)

"""The table of docs/clients.md, from what a run saw."""

from dataclasses import dataclass, field

from tests.support.paths import DOCS

PAGE = DOCS / "clients.md"
INTRODUCTION = """# Clients

`make clients` runs this and writes the page. Each client runs a plan with a question. While it waits, the test kills
the server. A new server takes the answer and continues; no effect happened twice. If the client shows forms, the test
answers the form; otherwise `planwarden approve` decides. A script plays the hosts' models.

| client | version | protocol | resumed |
|---|---|---|---|
"""
WITH_A_PERSON = """
## With a person in front of it

`make clients` also answers with keys and clicks on the screens of real hosts. `make pictures` draws these pictures from
the cells of those screens.

**Claude Code** runs the plan as a task, and the form appears by itself:

![The form in Claude Code](images/host-claude-code-form.png)
![The plan continued](images/host-claude-code-approved.png)

A confirmation shows the calls that it releases:

![A confirmation in Claude Code](images/host-claude-code-confirmation.png)

For a dangerous call it offers the page in the inbox. The plan continues when a person decides there or at a terminal:

![The page is offered in Claude Code](images/host-claude-code-link.png)

**Codex CLI** asks about the call of `resume_execution`, then shows the form, a field at a time:

![The form in Codex CLI](images/host-codex-form.png)
![The plan continued](images/host-codex-approved.png)

**The MCP Inspector's page** draws the view. For a dangerous call its one button opens the inbox.

![The view in the Inspector](images/host-inspector-app.png)
![After a click on Approve](images/host-inspector-app-approved.png)
"""


@dataclass
class Row:
    """What the run saw of one client."""

    client: str
    version: str
    protocol: str = ""
    resumed: str = ""
    skipped: str = ""
    """Why the client did not run; empty if it ran."""
    failed: str = ""

    @property
    def line(self) -> str:
        if self.skipped or self.failed:
            why = f"skipped: {self.skipped}" if self.skipped else f"failed: {self.failed}"
            why = " ".join(why.replace("|", "\\|").split())
            return f"| {self.client} | {self.version} | {why} | |\n"
        cells = [self.client, self.version, self.protocol, self.resumed]
        return f"| {' | '.join(cells)} |\n"


@dataclass
class Matrix:
    """The rows of a run, in the order in which they came."""

    rows: list[Row] = field(default_factory=list[Row])

    @property
    def page(self) -> str:
        return INTRODUCTION + "".join(row.line for row in self.rows) + WITH_A_PERSON

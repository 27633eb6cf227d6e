"""The table of docs/clients.md, from what a run saw."""

from dataclasses import dataclass, field

from tests.support.paths import DOCS

PAGE = DOCS / "clients.md"
INTRODUCTION = """# Clients

`make clients` runs this and writes the page. Each client starts `planwarden` over standard input and output, lists its
tools and runs a plan that writes a line, asks for a confirmation, and writes another line. When the answer says
`suspended`, the test kills the server with SIGKILL. Through a new server on the same home the client finds the question
and calls `resume_execution` with `approved: true`. At the end it reads the result, and each line was written once.

Where the client shows forms, the test answers the form. Where it shows none, or no person is there, its
`approved: true` changes nothing, and `planwarden approve` on a terminal decides. Hosts run without a person, and their
model is a program on this machine that speaks the format of their provider.

The test runs the Inspector's command line with its default protocol, and with 2026-07-28 (`--protocol-era modern`),
where it takes the plan as a task. It cannot show the question to a person, so the task ends with the answer that says
`suspended`.

| client | version | protocol | tools listed | suspended | resumed | result read |
|---|---|---|---|---|---|---|
"""
WITH_A_PERSON = """
## With a person in front of it

`make clients` also runs hosts with their own screens, on a terminal emulator and in Chromium, and answers there with
keys and clicks. Each time nothing after the question happens before the answer, the plan continues after it, and the
record says who decided and with what assurance. `make pictures` draws these pictures from the cells of the screens of
such runs; the windows around them and the sixteen basic colours are ours.

**Claude Code** runs the plan as a task and keeps talking; the form appears by itself. It shows four lines of a
question: the facts take at most three of them, then the agent's words begin. The arguments that a person can edit are
below.

![The form in Claude Code](images/host-claude-code-form.png)
![The plan continued](images/host-claude-code-approved.png)

A confirmation shows the calls that the same decision releases, here on a terminal of 80 columns:

![A confirmation in Claude Code](images/host-claude-code-confirmation.png)

There is no form for a dangerous call: Claude Code offers its page in the inbox, by itself too. Opening the page decides
nothing, and neither does *I'm done, continue*. The plan continues when a person decided there or at a terminal.

![The page is offered in Claude Code](images/host-claude-code-link.png)

**Codex CLI** first asks about the call of `resume_execution`, as for every tool that changes something. Then it shows
the form, a field at a time.

![The form in Codex CLI](images/host-codex-form.png)
![The plan continued](images/host-codex-approved.png)

**The MCP Inspector's page** draws the view of the MCP App with the host side of `@modelcontextprotocol/ext-apps`, in
its sandbox and under its policy, from `planwarden serve --http`. A dangerous call has one button there, which opens the
inbox.

![The view in the Inspector](images/host-inspector-app.png)
![After a click on Approve](images/host-inspector-app-approved.png)
"""


@dataclass
class Row:
    """What the run saw of one client."""

    client: str
    version: str
    protocol: str = ""
    tools: int = 0
    suspended: str = ""
    resumed: str = ""
    read: str = ""
    skipped: str = ""
    """Why the client did not run; empty if it ran."""
    failed: str = ""

    @property
    def line(self) -> str:
        if self.skipped or self.failed:
            why = f"skipped: {self.skipped}" if self.skipped else f"failed: {self.failed}"
            why = " ".join(why.replace("|", "\\|").split())
            return f"| {self.client} | {self.version} | {why} | | | | |\n"
        cells = [self.client, self.version, self.protocol, str(self.tools), self.suspended, self.resumed, self.read]
        return f"| {' | '.join(cells)} |\n"


@dataclass
class Matrix:
    """The rows of a run, in the order in which they came."""

    rows: list[Row] = field(default_factory=list[Row])

    @property
    def page(self) -> str:
        return INTRODUCTION + "".join(row.line for row in self.rows) + WITH_A_PERSON

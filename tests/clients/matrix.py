"""The table of docs/clients.md, from what a run saw."""

from dataclasses import dataclass, field

from tests.support.paths import DOCS

PAGE = DOCS / "clients.md"
INTRODUCTION = """# Clients

Written by `make clients`, from a run of it. Each client starts `planwarden` over standard input and output, lists its tools and runs
a plan that writes a line, asks for a confirmation, and writes another. When the answer says `suspended` the server is killed with
SIGKILL. Through a new server on the same home the client finds the question and calls `resume_execution` with `approved: true`; in
the end it reads the result, and both lines have been written once.

Where the client shows forms, the test answers the form. Where it shows none, or no person is there, its `approved: true` changes
nothing, and `planwarden approve` on a terminal decides. Hosts run without a person, and their model is a program on this
machine that speaks the format of their provider.

The Inspector's command line is run with the protocol that it speaks by default, and with 2026-07-28 (`--protocol-era modern`), where it
takes the plan as a task; as it has no way to put the question to anybody, the task ends with the answer that says `suspended`.

| client | version | protocol | tools listed | suspended | resumed | result read |
|---|---|---|---|---|---|---|
"""
WITH_A_PERSON = """
## With a person in front of it

`make clients` also runs hosts with their own screens, on a terminal emulator and in Chromium, and answers there with keys and clicks. Each time
nothing behind the question has happened before the answer, the plan goes on after it, and the record says who decided and how surely.
`make pictures` takes these pictures from such runs: they are drawn from the cells of the screens; the windows around them and the sixteen basic colours are ours.

**Claude Code** runs the plan as a task and goes on talking; the form comes by itself. It shows four lines of a question, so the facts take at
most three of them, the agent's words begin on the one after; the arguments that can be edited are below.

![The form in Claude Code](images/host-claude-code-form.png)
![The plan went on](images/host-claude-code-approved.png)

A confirmation shows the calls that the same decision releases, here on a terminal of 80 columns:

![A confirmation in Claude Code](images/host-claude-code-confirmation.png)

A dangerous call is not asked in a form: Claude Code offers its page in the inbox, by itself too. Opening it decides nothing, and neither does
*I'm done, continue*; the plan goes on when the call was decided there or at a terminal.

![The page is offered in Claude Code](images/host-claude-code-link.png)

**Codex CLI** first asks for the call of `resume_execution`, as for every tool that changes something; then comes our form, a field at a time.

![The form in Codex CLI](images/host-codex-form.png)
![The plan went on](images/host-codex-approved.png)

**The MCP Inspector's page** draws the view of the MCP App with the host side of `@modelcontextprotocol/ext-apps`, in its sandbox and under its
policy, from `planwarden serve --http`. A dangerous call has one button there, which opens the inbox.

![The view in the Inspector](images/host-inspector-app.png)
![After a click on Approve](images/host-inspector-app-approved.png)
"""


@dataclass
class Row:
    """What was seen of one client."""

    client: str
    version: str
    protocol: str = ""
    tools: int = 0
    suspended: str = ""
    resumed: str = ""
    read: str = ""
    skipped: str = ""
    """Why it was not run; empty when it was."""
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

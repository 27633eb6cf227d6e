"""Every client takes the same steps: list, suspend, lose the server, connect again, decide, read."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from dev.page import write_parts

from planwarden.server.mcp.tools.listing import TOOLS
from tests.clients.installed import Unavailable
from tests.clients.roster import CLIENTS, Client
from tests.clients.stage import PLAN, Call, Failed, Stage
from tests.support.paths import DOCS

pytestmark = pytest.mark.clients


@dataclass
class Row:
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
        return f"| {self.client} | {self.version} | {self.protocol} | {self.resumed} |\n"


@pytest.fixture(scope="session")
def matrix() -> Generator[list[Row]]:
    """Prints the table, and writes it into the page when every client was run."""
    rows: list[Row] = []
    yield rows
    heads = "| client | version | protocol | resumed |\n"
    table = (heads + "|---" * 4 + "|\n" + "".join(row.line for row in rows)).rstrip()
    if len(rows) == len(CLIENTS):
        write_parts(DOCS / "clients.md", {"clients": table})
    else:
        print(f"\n{table}")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_client_finds_its_question_again_after_the_server_was_killed(
    client: Client, tmp_path: Path, matrix: list[Row]
) -> None:
    row = Row(client.name, client.version)
    matrix.append(row)
    try:
        check_client(client, Stage(tmp_path), row)
    except Unavailable as error:
        row.skipped = str(error)
        pytest.skip(f"{client.name} {client.version}: {error}")
    except Failed as error:
        row.failed = "its process failed"
        pytest.fail(f"{client.name} {client.version}: {error}")
    except AssertionError:
        row.failed = "see the output of the test"
        raise


def check_client(client: Client, stage: Stage, row: Row) -> None:
    start: Call = ("execute_plan", {"plan": PLAN})
    client.runs(stage, [start])
    [answer] = stage.results_of("execute_plan")
    assert (answer["status"], stage.ledger, stage.is_killed) == ("suspended", ["first"], True)

    [question] = answer["suspensions"]
    place = {"threadId": answer["threadId"], "suspensionId": question["suspensionId"]}
    resume: Call = ("resume_execution", {**place, "decision": {"approved": True}})
    client.runs(stage, [("list_suspensions", {}), resume])
    [listed] = stage.results_of("list_suspensions")
    assert [found["suspensionId"] for found in listed["suspensions"]] == [place["suspensionId"]]
    row.resumed = decide_question(client, stage, place)

    client.runs(stage, [("get_execution", {"threadId": place["threadId"]})])
    done = stage.results_of("get_execution")[-1]
    assert (done["status"], stage.ledger) == ("completed", ["first", "second"])
    assert stage.versions == [client.speaks]
    assert stage.tools_listed == len(TOOLS)
    row.protocol = ", ".join(stage.versions)


def decide_question(client: Client, stage: Stage, place: dict[str, str]) -> str:
    if client.answers_forms:
        assert (stage.form_count, stage.ledger) == (1, ["first", "second"])
        return "in its form"
    assert stage.ledger == ["first"]
    assert stage.status(place["threadId"]) == "suspended"
    stage.approve(place["suspensionId"])
    if not stage.results_of("resume_execution"):
        return "at a terminal; the host refused its model's call of `resume_execution`"
    return "at a terminal, after a form that nobody answered" if stage.form_count else "at a terminal"

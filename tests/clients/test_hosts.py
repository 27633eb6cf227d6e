"""What people see in real hosts, what their keys do there, and that nothing is left running afterwards."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from dev.show.page import run_show
from dev.show.stage import PAGE, mask

from tests.clients.app_host import find_view, open_app, run_app_host, run_to_question
from tests.clients.conftest import end_processes
from tests.clients.installed import Unavailable
from tests.clients.saved_plans import PLAN_HOSTS, RUN, WRITTEN, PlanHost, run_plan_in_host
from tests.clients.scenes import CLOSE, CLOSED, FOUND, REMIND, SCENES, SENT, TOOLS, Scene, decided_by
from tests.clients.stage import Stage
from tests.requirements import requirement
from tests.support.browser import find_chromium
from tests.support.screen import Screen

BROWSER = find_chromium()
LIMIT_S = 120
REACHES = "url => fetch(url, {mode: 'no-cors'}).then(() => 'reached', () => 'refused')"
needs_chromium = pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium")


@contextmanager
def if_available() -> Generator[None]:
    """Skips what cannot be had here."""
    try:
        yield
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_daemon_that_a_client_left_is_ended(tmp_path: Path) -> None:
    """A daemon has a session of its own, and no parent that waits for it."""
    daemon = subprocess.Popen(
        [sys.executable, "-c", "print('runs', flush=True); input()"],
        env={**os.environ, "CODEX_HOME": str(tmp_path / "codex")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with daemon:
        assert daemon.stdout is not None and daemon.stdout.readline() == b"runs\n"
        end_processes(tmp_path)
        assert daemon.wait(60) != 0


@pytest.mark.clients
def test_a_saved_plan_is_run_killed_retried_scheduled_and_granted_as_the_page_says(tmp_path: Path) -> None:
    with if_available():
        assert mask(run_show(tmp_path)) == mask(PAGE.read_text(encoding="utf-8")), "run `make show`"


@pytest.mark.clients
@requirement("hosts:person")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_person_answers_in_a_real_host_and_the_plan_continues(scene: Scene, tmp_path: Path) -> None:
    def see(name: str, screen: Screen) -> None:
        assert screen.text.strip(), name

    with if_available():
        scene(Stage(tmp_path, tools=TOOLS, kills=False), see)


@pytest.mark.clients
@pytest.mark.parametrize("host", PLAN_HOSTS, ids=lambda host: host.name)
def test_a_saved_plan_runs_from_the_commands_of_a_host(host: PlanHost, tmp_path: Path) -> None:
    stage = Stage(tmp_path, kills=False)
    with if_available():
        seen = run_plan_in_host(host, stage)
        assert seen.lists_prompts == (host.asks_for is not None)
        assert seen.prompts == ([] if host.asks_for is None else [host.asks_for])
        assert (seen.calls, stage.ledger) == ([RUN], [WRITTEN])
        assert seen.statuses[-1] == "completed" and "completed" in seen.read


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, tools=TOOLS, kills=False)


@pytest.mark.clients
@needs_chromium
@requirement("app:view", "hosts:person")
async def test_approve_in_the_view_runs_the_call_and_the_sandbox_blocks_the_network(stage: Stage) -> None:
    assert BROWSER is not None
    thread_id = run_to_question(stage, REMIND)
    with if_available(), run_app_host(stage) as host, anyio.fail_after(LIMIT_S):
        async with open_app(host, BROWSER, "get_execution", {"threadId": thread_id}) as page:
            view = await find_view(page)
            shown = await view.inner_text("body")
            assert 'customers = ["Acme Ltd", "Borealis", "Cobalt & Sons"]' in shown and "Risk: confirm" in shown
            assert await view.evaluate("window.origin") == "null"
            assert await view.evaluate(REACHES, host.server_url) == "refused"
            assert stage.ledger == [FOUND]
            await view.get_by_role("button", name="Approve").click()
            await view.wait_for_selector("text=Approved. Step 2 of 2 is completed. The plan is completed.")
    assert stage.ledger == [FOUND, SENT]
    assert decided_by(stage) == (True, "client")


@pytest.mark.clients
@needs_chromium
@requirement("app:view", "app:assurance")
async def test_a_dangerous_call_has_one_button_in_the_view_and_the_host_opens_the_inbox(stage: Stage) -> None:
    assert BROWSER is not None
    thread_id = run_to_question(stage, CLOSE)
    with if_available(), run_app_host(stage) as host, anyio.fail_after(LIMIT_S):
        async with open_app(host, BROWSER, "get_execution", {"threadId": thread_id}) as page:
            view = await find_view(page)
            assert await view.locator("button:visible").all_inner_texts() == ["Open the inbox"]
            async with page.expect_popup() as popup:
                await view.get_by_role("button", name="Open the inbox").click()
            inbox = await popup.value
            await inbox.wait_for_url("**/inbox/pair?next=*")
    assert CLOSED not in stage.ledger

"""The view of the MCP App in a published host, drawn in its sandbox from the real server over HTTP."""

from pathlib import Path

import anyio
import pytest

from tests.clients.app_host import find_view, open_app, run_app_host, run_to_question
from tests.clients.installed import Unavailable
from tests.clients.interactive import CLOSE, REMIND, TOOLS
from tests.clients.scenes import CLOSED, FOUND, SENT, decided_by
from tests.clients.stage import Stage
from tests.requirements import requirement
from tests.support.scene import find_chromium

BROWSER = find_chromium()
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.clients,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium: apt-get install chromium"),
]
LIMIT_S = 120
REACHES = "url => fetch(url, {mode: 'no-cors'}).then(() => 'reached', () => 'refused')"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, tools=TOOLS, kills=False)


@requirement("app:view", "hosts:person")
async def test_approve_in_the_view_runs_the_call_and_the_sandbox_blocks_the_network(stage: Stage) -> None:
    assert BROWSER is not None
    thread_id = run_to_question(stage, REMIND)
    try:
        with run_app_host(stage) as host, anyio.fail_after(LIMIT_S):
            async with open_app(host, BROWSER, "get_execution", {"threadId": thread_id}) as page:
                view = await find_view(page)
                shown = await view.inner_text("body")
                assert 'customers = ["Acme Ltd", "Borealis", "Cobalt & Sons"]' in shown and "Risk: confirm" in shown
                assert await view.evaluate("window.origin") == "null"
                assert await view.evaluate(REACHES, host.server_url) == "refused"
                assert stage.ledger == [FOUND]
                await view.get_by_role("button", name="Approve").click()
                await view.wait_for_selector("text=Approved. Step 2 of 2 is completed. The plan is completed.")
    except Unavailable as error:
        pytest.skip(str(error))
    assert stage.ledger == [FOUND, SENT]
    assert decided_by(stage) == (True, "client")


@requirement("app:view", "app:assurance")
async def test_a_dangerous_call_has_one_button_in_the_view_and_the_host_opens_the_inbox(stage: Stage) -> None:
    assert BROWSER is not None
    thread_id = run_to_question(stage, CLOSE)
    try:
        with run_app_host(stage) as host, anyio.fail_after(LIMIT_S):
            async with open_app(host, BROWSER, "get_execution", {"threadId": thread_id}) as page:
                view = await find_view(page)
                assert await view.locator("button:visible").all_inner_texts() == ["Open the inbox"]
                async with page.expect_popup() as popup:
                    await view.get_by_role("button", name="Open the inbox").click()
                inbox = await popup.value
                await inbox.wait_for_url("**/inbox/pair?next=*")
    except Unavailable as error:
        pytest.skip(str(error))
    assert CLOSED not in stage.ledger

"""The operator's rules on what a host does itself: command lines part by part, folders, budgets, and `tool = "*"`."""

from pathlib import Path

import pytest

from planwarden.server.auth.principals import LOCAL
from planwarden.server.guard.calls import build_call
from planwarden.server.views.voices import build_voices
from planwarden.storage.memory.store import MemoryStore
from tests.requirements import requirement
from tests.server.guard.support import guarded

pytestmark = pytest.mark.anyio

NPM = """
[[rules]]
tool = "*/Bash"
when = { command = { matches = "^npm (test|ci)$" } }
then = "allow"

[[rules]]
tool = "claude-code/Bash"
when = { command = { prefix = "git push" } }
then = "deny"
because = "people push"
"""


async def test_a_rule_lets_a_call_pass_at_once_and_the_audit_names_it(tmp_path: Path) -> None:
    async with guarded(tmp_path / "home", toml=NPM) as host:
        assert [(await host.decide(host.call("npm test"))).then for _ in range(3)] == ["allow"] * 3
        rows = await host.service.engine.store.audit_rows()
        page = await host.service.list_suspensions(principal=None)
    assert [row.entry.facts["rule"] for row in rows if row.entry.kind == "guarded"] == [1, 1, 1]
    assert page.total == 0


async def test_a_rule_denies_with_its_because_which_the_model_reads(tmp_path: Path) -> None:
    async with guarded(tmp_path / "home", toml=NPM) as host:
        refused = await host.decide(host.call("git push --force"))
    assert refused.then == "deny"
    assert "people push" in refused.reason
    assert refused.suspension_id is None


@pytest.mark.parametrize(
    "command",
    [
        *("npm test; rm -rf x", "npm test && rm x", "npm test | sh", "npm test & rm x", "npm test\nrm x"),
        *("npm test $(rm x)", "npm test `rm x`", 'npm test "$(rm x)"', "npm test > ~/.bashrc", "npm test $X"),
        *(
            "npm test <(rm x)",
            "(npm test)",
            "npm test {a,b}",
            "npm test <<E\nE",
            "npm test \\\n; rm x",
            "cd /tmp && npm test",
            "pushd x; npm test",
            "cd; npm test",
        ),
    ],
)
@requirement("guard:parts")
async def test_a_rule_lets_no_other_command_pass_in_the_same_line(tmp_path: Path, command: str) -> None:
    loose = NPM.replace('matches = "^npm (test|ci)$"', 'prefix = "npm test"')
    async with guarded(tmp_path / "home", toml=loose) as host:
        verdict = await host.decide(host.call(command))
    assert (verdict.then, verdict.suspension_id is not None) == ("deny", True)


async def test_the_question_says_that_a_rule_cannot_see_through_the_line(tmp_path: Path) -> None:
    loose = NPM.replace('matches = "^npm (test|ci)$"', 'prefix = "npm test"')
    async with guarded(tmp_path / "home", toml=loose) as host:
        await host.decide(host.call("npm test $X"))
        [question] = (await host.service.list_suspensions(principal=None)).suspensions
    assert any("a rule cannot see through" in sentence for sentence in build_voices(question).found)


@pytest.mark.parametrize(
    "command", ["npm ci && npm test", "npm test 2>&1", "npm ci; npm test >/dev/null 2>&1", "cd HERE && npm ci"]
)
async def test_a_line_whose_parts_all_pass_passes(tmp_path: Path, command: str) -> None:
    loose = NPM.replace('matches = "^npm (test|ci)$"', 'matches = "^npm (test|ci)"')
    async with guarded(tmp_path / "home", toml=loose) as host:
        assert (await host.decide(host.call(command.replace("HERE", host.folder)))).then == "allow"


async def test_a_denied_part_denies_the_line(tmp_path: Path) -> None:
    loose = NPM.replace('matches = "^npm (test|ci)$"', 'prefix = "npm test"')
    async with guarded(tmp_path / "home", toml=loose) as host:
        refused = await host.decide(host.call("npm test && git push"))
    assert "people push" in refused.reason


@pytest.mark.parametrize("pattern", ["*", "*Bash", "c*"])
async def test_a_rule_for_every_tool_opens_no_shell(tmp_path: Path, pattern: str) -> None:
    toml = f'[[rules]]\ntool = "{pattern}"\nthen = "allow"\n'
    async with guarded(tmp_path / "home", toml=toml) as host:
        assert (await host.decide(host.call("ls"))).suspension_id is not None


async def test_a_rule_for_every_tool_still_refuses(tmp_path: Path) -> None:
    async with guarded(tmp_path / "home", toml='[[rules]]\ntool = "*"\nthen = "deny"\nbecause = "frozen"\n') as host:
        assert "frozen" in (await host.decide(host.call("ls"))).reason
        assert "frozen" in (await host.decide(host.event({"file_path": "/x"}, "Read"))).reason


async def test_a_rule_can_name_the_folder_and_a_tools_own_cwd_does_not_stand_for_it(tmp_path: Path) -> None:
    when = f'cwd = {{ const = "{tmp_path / "project"}" }}'
    toml = f'[[rules]]\ntool = "claude-code/*"\nwhen = {{ {when} }}\nthen = "allow"\n'
    async with guarded(tmp_path / "home", toml=toml) as host:
        assert (await host.decide(host.call("ls"))).then == "allow"
        elsewhere = host.call("ls")
        elsewhere.folder = "/"
        assert (await host.decide(elsewhere)).then == "deny"
        pretending = host.event({"command": "ls", "cwd": str(tmp_path / "project")}, "mcp__x__run")
        pretending.folder = "/"
        assert (await host.decide(pretending)).then == "deny"


@pytest.mark.parametrize("risk", ["read", "confirm", "dangerous"])
async def test_no_rule_lets_less_than_a_person_release_a_call_that_is_asked_about(tmp_path: Path, risk: str) -> None:
    toml = f'[[rules]]\ntool = "claude-code/Bash"\nrisk = "{risk}"\n'
    async with guarded(tmp_path / "home", toml=toml) as host:
        verdict = await host.decide(host.call("ls"))
        if risk == "read":
            assert verdict.then == "allow"
            return
        [question] = (await host.service.list_suspensions(principal=None)).suspensions
        assert question.needs == "human"


async def test_a_critical_call_of_a_host_needs_more_than_a_person(tmp_path: Path) -> None:
    async with guarded(tmp_path / "home", toml='[[rules]]\ntool = "*/Bash"\nrisk = "critical"\n') as host:
        asked = await host.decide(host.call("ls"))
        await host.answer(asked, by=LOCAL)
        [question] = (await host.service.list_suspensions(principal=None)).suspensions
        assert question.needs == "signed"
        assert (await host.decide(host.call("ls"))).then == "deny"


async def test_a_spent_budget_asks(tmp_path: Path) -> None:
    toml = '[[rules]]\ntool = "claude-code/Bash"\nthen = "allow"\nbudget = [{ count = 2, per = "hour" }]\n'
    async with guarded(tmp_path / "home", toml=toml) as host:
        verdicts = [await host.decide(host.call("ls")) for _ in range(3)]
    assert [verdict.then for verdict in verdicts] == ["allow", "allow", "deny"]
    assert verdicts[2].suspension_id is not None


async def test_a_rule_that_denies_now_ends_a_pass_that_a_person_gave_before(tmp_path: Path) -> None:
    home = tmp_path / "home"
    store = MemoryStore()
    async with guarded(home, store=store) as host:
        await host.answer(await host.decide(host.call("git push")))
    async with guarded(home, store=store, toml=NPM) as host:
        assert "people push" in (await host.decide(host.call("git push"))).reason


async def test_a_path_of_which_nobody_can_say_where_it_leads_is_asked_about(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a").symlink_to(folder / "b")
    (folder / "b").symlink_to(folder / "a")
    rule = f"""
[[rules]]
tool = "*/Write"
when = {{ file_path = {{ under = "{folder}" }} }}
then = "allow"
"""
    async with guarded(tmp_path / "home", toml=rule) as host:
        plain = {"file_path": str(folder / "c"), "content": "x"}
        looped = {"file_path": str(folder / "a"), "content": "x"}
        found = [await host.decide(build_call("claude-code", "Write", given, host.folder)) for given in (plain, looped)]
    assert [verdict.then for verdict in found] == ["allow", "deny"]
    assert found[1].suspension_id is not None

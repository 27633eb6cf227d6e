"""What the guard says about a command line, held against what real shells do with it."""

import shlex
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from planwarden.server.guard.calls import build_call
from planwarden.server.guard.judging import Judge, build_judge
from planwarden.server.settings.configuration import load_settings
from planwarden.tools.guarded.shell import MAX_CHARS, MAX_INNER, InnerCommands, ShellCommand, list_words, read_commands
from tests.fuzz.jail import SHELLS, Jail, is_possible, open_jail
from tests.requirements import requirement

RULES = r"""
[[rules]]
tool = "claude-code/Bash"
when = { command = { matches = "git push( .*)?" } }
then = "deny"
because = "people push"

[[rules]]
tool = "*/*"
when = { command = { matches = '(npm|git|a)([^a-z](.|\n)*)?'  } }
then = "allow"
"""
EVERYTHING = r"""
[[rules]]
tool = "claude-code/Bash"
when = { command = { matches = "git (push|pull)( .*)?" } }
then = "ask"

[[rules]]
tool = "claude-code/*"
then = "allow"
"""
BLANKS = "\u00a0\u3000\u2003\u0085\u000b\u000c\u001c"


@pytest.fixture
async def jail(tmp_path: Path) -> AsyncGenerator[Jail]:
    if not is_possible():
        pytest.skip("the system has no namespaces to lock a shell up in")
    root = tmp_path / "jail"
    root.mkdir()
    programs = ("npm", "git", "a", "push", *(f"{blank}npm" for blank in BLANKS), *(f"npm{blank}" for blank in BLANKS))
    async with open_jail(root, programs) as opened:
        yield opened


def build_judge_with(root: Path, rules: str) -> Judge:
    home = root / "home"
    home.mkdir()
    (home / "planwarden.toml").write_text(rules)
    return build_judge(load_settings(home=home, environment={"HOME": str(root)}))


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return build_judge_with(tmp_path, RULES)


def is_let_pass(judge: Judge, command: str) -> bool:
    verdict = judge.judge(build_call("claude-code", "Bash", {"command": command}, "/work"))
    return verdict is not None and verdict.then == "allow"


def judge_line(judge: Judge, command: str) -> str:
    """Return why the line is denied; nothing where it is not."""
    verdict = judge.judge(build_call("claude-code", "Bash", {"command": command}, "/work"))
    return verdict.reason if verdict is not None and verdict.then == "deny" else ""


@requirement("guard:parts")
async def test_a_blank_that_no_shell_knows_makes_another_program_and_is_asked_about(jail: Jail, judge: Judge) -> None:
    assert is_let_pass(judge, "npm test")
    for blank in BLANKS:
        for line in (f"{blank}npm test", f"npm{blank} test", f"npm{blank}", f"a; {blank}npm"):
            assert not is_let_pass(judge, line)
            for shell in SHELLS:
                ran, _ = await jail.run(shell, line)
                assert any(blank in words[0] for words in ran), (shell, line)


SPELLED = (
    *("git push", "git  push", "git\tpush", "git 'push'", 'git pu""sh', "g\\it push", "'git' \\push", "git \\\n push"),
    *("a && git  push", "git  push >/dev/null", "X=1 git push", "(git  push)", "{ git push; }", "! git push"),
    *("if git  push; then a; fi", 'a "$(git  push)"', "a `git push`", "git  push -f | a"),
)
RUN_BY_SHELLS = (
    *("command git push", "exec git push", "exec -a b git push", "eval git push", "eval 'git  push'", "time git push"),
    *("trap 'git push' EXIT", "/sh/dash -c 'git push'", '/sh/bash -c "git push"', "/sh/bash -ec 'a; git push'"),
    *("/sh/dash -c 'exec git push'", "/bin/git push", "command -p /bin/git push", "/sh/bash -o posix -c 'git push' x"),
)
"""Lines that the shells of the jail run by themselves."""
NOT_OF_DASH = (("dash", "time"), ("dash", "exec"))
"""One shell has no `time` and no `exec -a` of its own."""


@requirement("guard:parts")
async def test_what_a_rule_denies_is_denied_however_the_shell_lets_it_be_written_and_behind_what_runs_it(
    jail: Jail, judge: Judge
) -> None:
    for line in (*SPELLED, *RUN_BY_SHELLS):
        assert "people push" in judge_line(judge, line), line
        for shell in SHELLS:
            ran, _ = await jail.run(shell, line)
            pushed = any(words[:2] == ["git", "push"] for words in ran)
            assert pushed or (shell, line.split()[0]) in NOT_OF_DASH, (shell, line)


WRAPPED = (
    *("git push", "/usr/bin/git push", "git -C /x push", "git -c a=b push", "git --git-dir=/x --no-pager push"),
    *("git --git-dir /x push", "env git push", "env X=1 a-b=2 git push", "env -i -u HOME -C/tmp git push"),
    *("/usr/bin/env git push", "env -- X=1 git push", "sudo git push", "sudo -nu ann X=1 -- git push"),
    *("sudo --user=ann git push", "doas -u ann git push", "builtin command git push", "nohup git push"),
    *("setsid -w git push", "nice -n 5 git push", "nice -5 git push", "nice --adjustment=5 git push"),
    *("ionice -c2 -n 7 git push", "timeout 5 git push", "timeout -k 1 --signal KILL 5 git push", "stdbuf -oL git push"),
    *("chrt -f 10 git push", "taskset -c 0 git push", "chroot / git push", "flock /tmp/x git push"),
    *("flock /tmp/x -c 'git push'", "busybox sh -c 'git push'", "busybox env git push", "bash -xc 'a; git push -f'"),
    *("sh -e -o pipefail -c 'git push' name", "bash --norc -c 'env git push'", "bash +x -c -- 'git push'"),
    *("uv run git push", "uv run --with x git push", "npm exec -c 'git push'", "npx git push", "fd x -x git push"),
    *("fd -HIx git push", "fd x -0X git push"),
    *("systemd-run --user -p A=b git push", "hyperfine 'git push'", "watch -n 1 git push"),
    *("git submodule foreach git push", "git submodule -q foreach --recursive 'git push'", "git bisect run git push"),
    *("git rebase -x 'git push' HEAD", "git rebase -i --exec='git push' HEAD", "git rebase -ix'git push' HEAD"),
    *("fd x -xgit push", "fd x --exec=git push", "git clone -u 'git push' u", "git fetch --upload-pack 'git push' u"),
    *("git push --receive-pack='git push' u", "git ls-remote --up='git push' u", "git clone -u'git push' u"),
    "env sudo nice timeout 5 bash -c 'nohup git push'",
)
"""Lines that are read to the end, in which `git push` runs."""
UNSEEN = (
    *("xargs git push", "xargs -n 1 -I {} git push {}", "find . -exec git push {} ;", "env -S 'git push'"),
    *("find . -name x -execdir env git push ;", "env --split-string='git push'", "su ann -c 'git push'"),
    *("script -q -c 'git push' /dev/null", "parallel git push", "time -p git push", 'bash -c "git push; $X"'),
    "bash -c 'git push' | bash",
)
"""Lines in which `git push` is found and something is not seen."""
UNKNOWN = (
    *("env --unknown git push", "sudo --uns x git push", "bash", "bash -s", "a | sh", "sh /dev/stdin", "sudo -s"),
    *(
        "git -c Alias.p=push p",
        "git config alias.p push",
        "git -c core.pager='git push' log",
        "git rebase -x 'git $X' a",
    ),
    *(
        "git -c submodule.x.update='!git push' pull",
        "git clone --config=core.hooksPath=/x u",
        "git config set alias.p push",
    ),
    *("git -c remote.x.uploadpack=a fetch", "git -c interactive.diffFilter=a add -p", "git -c core.hooksPath=true a"),
    *("git -c core.editor='a; x=cat' commit", "git -c core.pager=a config --list", "git --config-env core.pager=cat a"),
    *("git -c include.path=cat a", "GIT_PAGER='a;b=cat' git log", "git config alias.p push --get"),
    "env GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=alias.p GIT_CONFIG_VALUE_0=push git p",
    *("git clone --conf=core.hooksPath=/x u", "git clone --template=/x u", "git init --templ /x"),
    *("git -c alias.p=push p", "env -S 'git\\_push'", "bash -c 'git $X'", "fish -c 'git push'", "xargs git"),
    *("env --x git push", "echo git push | sh", "echo push | xargs git", "env " * 20 + "git push"),
    "; ".join(f"env a{n}" for n in range(MAX_INNER)),
)

HARMLESS = (
    *("git -c core.editor=true rebase --continue", "git -c core.editor=: commit", "git -c core.fsmonitor=false status"),
    *("git -c credential.helper= fetch", "git -c core.pager=cat log", "git -c pager.log=false log"),
    *("git config --get alias.st", "git config --global core.editor", "git config get core.pager", "git config -l"),
    *(
        "env GIT_EDITOR=true git rebase --continue",
        "env GIT_PAGER=cat git log",
        "git -c submodule.x.update=rebase fetch",
    ),
)
"""Lines with a setting of git by which nothing runs."""


@requirement("guard:parts")
@pytest.mark.parametrize("line", HARMLESS)
def test_a_setting_of_git_by_which_nothing_runs_asks_nobody(tmp_path: Path, line: str) -> None:
    assert is_let_pass(build_judge_with(tmp_path, EVERYTHING), line)


@requirement("guard:parts")
@pytest.mark.parametrize("rule", ["ask", "deny"])
def test_where_everything_else_is_let_pass_no_wrapper_leads_around_a_rule(tmp_path: Path, rule: str) -> None:
    judge = build_judge_with(tmp_path, EVERYTHING.replace('"ask"', f'"{rule}"'))
    for line in (*RUN_BY_SHELLS, *WRAPPED, *UNSEEN):
        assert not is_let_pass(judge, line), line
        assert rule == "ask" or judge_line(judge, line), line
        if "git push" in line and line not in RUN_BY_SHELLS:
            # What is read to the end is let pass where no rule is about it; what is not seen is asked about.
            other = line.replace("git push", "npm test")
            assert is_let_pass(judge, other) == (line not in UNSEEN), other
    for line in UNKNOWN:
        assert not is_let_pass(judge, line), line


@requirement("guard:parts")
@pytest.mark.parametrize(
    "line", ["env git push", "sudo npm test", "bash -c 'npm test'", "/x/npm test", "timeout 5 npm test"]
)
def test_no_rule_that_lets_a_command_pass_lets_it_pass_behind_a_wrapper(judge: Judge, line: str) -> None:
    assert not is_let_pass(judge, line)


WORKED_OUT = (
    *(
        "a >/dev/null b",
        "a 2>&1 b",
        "a >f",
        "a 2>f",
        "a >/dev/nullx",
        "a </dev/null x",
        ">/dev/null a",
        "a>f",
        "a >> f",
    ),
    *("a *", "a ?", "a [w]*", "a ~", "a ~root", "a {b,c}", "a =npm", "a x=~", "a \\ \\\npush", "a $HOME"),
    "a <<E\na\nE",
    *("npm #x", "X=1 npm", "a |& npm", "time a", "if a", "! a", "(a)", "{ a; }", "a <(a)", "a ${a}", "a $(a)", "a `a`"),
    *("a \\", "a '", 'a "a', "a\rb", "a \x01", "a\0a", "a 'a\0a'", 'a "a\x1ba"', "a\\\nb", "a &&", "a |", "; a"),
    *("a ;; a", "a & & a", "a\n&& a", "", "  ;  ", ";" * 80, "a;" * 80, "a" + " x" * MAX_CHARS),
)


@requirement("guard:parts")
@pytest.mark.parametrize("line", WORKED_OUT)
def test_what_a_shell_works_out_first_or_the_grammar_does_not_know_is_asked_about(judge: Judge, line: str) -> None:
    assert not is_let_pass(judge, line)


@requirement("guard:parts")
async def test_what_every_shell_reads_alike_is_let_pass(jail: Jail, judge: Judge) -> None:
    ends = ("a >/dev/null 2>&1", "npm test &>/dev/null; a", "git log -1 </dev/null | a", "\na &&\na |\n npm\n\na;\n")
    for line in (*ends, "npm 'x y' \\\n  \"z\"", "a HEAD~1", "a 'b; c' \"d | e\" f\\;g"):
        assert is_let_pass(judge, line), line
        for shell in SHELLS:
            ran, files = await jail.run(shell, line)
            assert ran and {words[0] for words in ran} <= {"a", "npm", "git"} and files == [], (shell, line)


# zsh expands a word that begins with an equals sign, which `shlex` does not quote.
WORD = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=8).filter(lambda w: w[:1] != "=")


@given(st.lists(WORD, min_size=1, max_size=4), st.text(max_size=60))
def test_quoted_words_come_back_as_in_a_shell_and_no_text_breaks_the_reader(words: list[str], text: str) -> None:
    line = shlex.join(["a", *words])
    assert read_commands(line) == (ShellCommand(line, ("a", *words)),)
    assert list(list_words(line)) == [["a", *words]]
    assert list(list_words(text))
    for command in read_commands(text) or ():
        assert command.words and command.text == command.text.strip()


PIECES = ("a", "a ", "'a' ", "a \\\n", "2>", "\\a", '"a\\"', "a;", ">", '"', '"a', " 2>&1")
WRAPPING = ("timeout ", "env ", "uv run ", "bash -c ", "eval '", "sudo -u ", 'bash -c "$(', "find -exec ", "npx ")
LINES = ("flock -c 'flock -c' ", "flock -c x ", "flock -c '' ")


@pytest.mark.parametrize("piece", [*PIECES, *WRAPPING, *LINES])
def test_no_line_makes_the_reader_try_without_end(piece: str) -> None:
    line = "a " + piece * ((MAX_CHARS - 2) // len(piece))
    read_commands(line)
    assert list(list_words(line))
    assert len(InnerCommands(line[2:]).list_lines()) <= MAX_INNER + 3


def test_a_find_that_ends_where_a_command_would_begin_is_read() -> None:
    assert InnerCommands("find . -exec").list_lines() == ["find . -exec"]


def test_a_line_whose_commands_are_too_long_to_be_read_is_not_read_whole() -> None:
    for line in ("flock -c 'flock -c' " * 1_200, "npx " + "a " * 120_000):
        assert not InnerCommands(line).is_whole
    assert InnerCommands("a; env b '" + "x" * (MAX_CHARS - 12) + "'").is_whole


@pytest.mark.parametrize(
    ("host", "tool", "arguments"),
    [
        ("claude-code", "Bash", {"dangerouslyDisableSandbox": True}),
        ("claude-code", "Bash", {"shell": "python3"}),
        ("claude-code", "PowerShell", {}),
        ("codex", "Bash", {"shell": "/tmp/sh"}),
        ("codex", "shell", {"with_escalated_permissions": True}),
        ("codex", "shell_command", {"sandbox_permissions": "require_escalated"}),
        ("opencode", "bash", {"workdir": "../other"}),
        ("opencode", "bash", {"workdir": "~"}),
        ("gemini", "run_shell_command", {"dir_path": ["/"]}),
        ("cursor", "Shell", {"env": {"PATH": "/tmp"}}),
    ],
)
def test_an_argument_that_nobody_knows_makes_a_command_that_is_asked_about(
    judge: Judge, host: str, tool: str, arguments: dict[str, JsonValue]
) -> None:
    verdict = judge.judge(build_call(host, tool, {"command": "npm test", **arguments}, "/work"))
    assert verdict is None


@pytest.mark.parametrize(
    ("host", "tool", "place"),
    [
        ("codex", "Bash", "workdir"),
        ("codex", "local_shell", "working_directory"),
        ("gemini", "run_shell_command", "dir_path"),
        ("gemini", "run_shell_command", "directory"),
        ("opencode", "bash", "workdir"),
        ("cursor", "Shell", "working_directory"),
    ],
)
def test_a_folder_that_the_call_names_is_what_rules_see(tmp_path: Path, host: str, tool: str, place: str) -> None:
    rule = '[[rules]]\ntool = "*/*"\nwhen = { cwd = { in = ["/shop", "/shop/web"] } }\nthen = "allow"\n'
    judge = build_judge_with(tmp_path, rule)

    def is_let(where: str) -> bool:
        verdict = judge.judge(build_call(host, tool, {"command": "npm test", place: where}, "/shop"))
        return verdict is not None and verdict.then == "allow"

    assert [is_let(where) for where in ("", ".", "web", "/shop/", "/other", "/", "api")] == [True] * 4 + [False] * 3

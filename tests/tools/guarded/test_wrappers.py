"""What a rule denies is found behind programs that run others, and what nobody can see there is not let pass."""

import pytest

from planwarden.tools.guarded.wrappers import MAX_INNER, InnerCommands

WRAPPED = (
    "git push",
    "/usr/bin/git push",
    "git -C /x push",
    "git -c a=b push",
    "git --git-dir=/x --no-pager push",
    "git --git-dir /x push",
    "env git push",
    "env X=1 a-b=2 git push",
    "env -i -u HOME -C/tmp git push",
    "/usr/bin/env git push",
    "sudo git push",
    "sudo -nu ann X=1 -- git push",
    "sudo --user=ann git push",
    "doas -u ann git push",
    "command git push",
    "command -p git push",
    "builtin command git push",
    "exec -a other git push",
    "nohup git push",
    "setsid -w git push",
    "nice -n 5 git push",
    "nice -5 git push",
    "nice --adjustment=5 git push",
    "ionice -c2 -n 7 git push",
    "timeout 5 git push",
    "timeout -k 1 --signal KILL 5 git push",
    "stdbuf -oL git push",
    "chrt -f 10 git push",
    "taskset -c 0 git push",
    "chroot / git push",
    "flock /tmp/x git push",
    "flock /tmp/x -c 'git push'",
    "busybox sh -c 'git push'",
    "busybox env git push",
    'bash -c "git push"',
    "bash -xc 'a; git push -f'",
    "sh -e -o pipefail -c 'git push' name",
    "bash --norc -c 'env git push'",
    "eval git push",
    "eval 'git push'",
    "trap 'git push' EXIT",
    "uv run git push",
    "uv run --with x git push",
    "npm exec -c 'git push'",
    "npx git push",
    "fd x -x git push",
    "systemd-run --user -p A=b git push",
    "hyperfine 'git push'",
    "env -- X=1 git push",
    "bash +x -c -- 'git push'",
    "env sudo nice timeout 5 bash -c 'nohup git push'",
)
"""Lines that are read to the end, in which `git push` runs."""
UNSEEN = (
    "xargs git push",
    "xargs -n 1 -I {} git push {}",
    "find . -exec git push {} ;",
    "find . -name x -execdir env git push ;",
    "env -S 'git push'",
    "env --split-string='git push'",
    "su ann -c 'git push'",
    "script -q -c 'git push' /dev/null",
    "watch -n 1 git push",
    "parallel git push",
    "time -p git push",
    'bash -c "git push; $X"',
    "bash -c 'git push' | bash",
)
"""Lines in which `git push` is found and something is not seen."""


@pytest.mark.parametrize("line", [*WRAPPED, *UNSEEN])
def test_a_command_is_found_behind_what_runs_it(line: str) -> None:
    assert any(f"{found} ".startswith("git push ") for found in InnerCommands(line).list_lines())


@pytest.mark.parametrize("line", WRAPPED)
def test_a_known_form_of_a_wrapper_is_read_to_the_end(line: str) -> None:
    assert InnerCommands(line).is_whole


@pytest.mark.parametrize(
    "line",
    [
        *(line for line in UNSEEN if not line.startswith("watch")),
        *("env --unknown git push", "sudo --uns x git push", "bash", "bash -s", "a | sh", "sh /dev/stdin", "sudo -s"),
        *("git -c alias.p=push p", "env -S 'git\\_push'", "bash -c 'git $X'", "fish -c 'git push'", "xargs git"),
        *("env " * 20 + "git push", "; ".join(f"env a{n}" for n in range(MAX_INNER))),
    ],
)
def test_where_nobody_can_say_what_runs_it_says_so(line: str) -> None:
    assert not InnerCommands(line).is_whole


@pytest.mark.parametrize("line", ["npm test", "env", "git log -C 3", "bash deploy.sh push", "timeout 5 npm test"])
def test_a_plain_line_is_read_to_the_end_and_finds_nothing_else(line: str) -> None:
    inner = InnerCommands(line)
    assert inner.is_whole and not any(found.startswith("git push") for found in inner.list_lines())


@pytest.mark.parametrize(
    "piece", ["timeout ", "env ", "uv run ", "bash -c ", "eval '", "sudo -u ", 'bash -c "$(', "find -exec "]
)
def test_no_line_is_looked_through_without_end(piece: str) -> None:
    lines = InnerCommands(piece * (32_000 // len(piece))).list_lines()
    assert len(lines) <= MAX_INNER + 3

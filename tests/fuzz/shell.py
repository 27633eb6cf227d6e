"""Command lines of hosts: what a rule lets pass is run by real shells, which must run exactly what the rule saw."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from planwarden.server.guard.calls import build_call
from planwarden.server.guard.judging import Judge, build_judge
from planwarden.server.settings.configuration import load_settings
from planwarden.tools.guarded.shell import read_commands
from tests.fuzz.entrance import Wrong
from tests.fuzz.inputs import Mutator
from tests.fuzz.jail import SHELLS, Jail, open_jail

ALLOWED = ("a", "b", "git", "npm")
RULES = f"""
[[rules]]
tool = "claude-code/Bash"
when = {{ command = {{ matches = '^({"|".join(ALLOWED)})(\\s[\\s\\S]*)?$' }} }}
then = "allow"
"""
TRIES = 200
"""Lines that may be asked about before one is let pass."""
PROGRAMS = (*ALLOWED, *ALLOWED, *ALLOWED, "g\\it", "'npm'", "a''")
WORDS = (
    *("push", "rm", "1", "2", "-v", "--x=y", "HEAD~1", "./x", "/bin/rm", "a,b", "x:y", "@", "%1", "+", "''", "\\;"),
    *("'x y'", '"x y"', "'x; rm'", '"x; rm"', "'\\'", '"\\\\"', '"\\""', '"x\\$y"', "'$(rm)'", "'`rm`'", '"é"'),
    *("'あ\\'", "'x\nrm'", '"x\nrm"', "pu''sh", 'p"us"h', "\\p\\u", '"x\\n"', "if", "then", "a~", "\\ ", "x#"),
)
BLANKS = (" ", " ", " ", "  ", "\t", " \\\n")
ENDS = (";", "; ", " && ", "&&", " || ", " | ", "|", " & ", "&", "\n", ";\n", " && \\\n ", " &&\n")
REDIRECTIONS = ("", "", "", " 2>&1", " >/dev/null", " > /dev/null", " </dev/null", " &>/dev/null", " >&2")
ODD = (
    *("$(rm)", "`rm`", '"$(rm)"', "${x}", "$x", "$'x'", '$"x"', "<(rm)", ">f", ">>f", "<f", "<<E\nrm\nE\n", "<<<x"),
    *("*", "?", "[a]", "~", "~root", "{a,rm}", "=x", "x=~", ";;", "rm", "push", "/bin/a", "{", "}", "(", ")", "#", "!"),
    *("=", "=rm", "x=1", "x=1 ", "^", "\\", "'", '"', "|&", ";;", "&&&", "2>", "&1", "2>&1x", ">&2", ">/dev/nullx"),
    *(">/dev/null/x", "&>", "\\\n", "\r", "\r\n", "\u00a0", "\u3000", "\u2003", "\x85", "\x0b", "\x0c", "\x1c"),
    *("\ufeff", "\u2028", "\x01", "\x7f", "\0", "é", "if ", "then ", "fi", "time ", "for ", "do ", "done", "case "),
    *("esac", "function ", "in ", "while ", "[[ ", "]]", "((", "))", "a()", "coproc ", "eval ", "exec ", "command "),
    *("env ", "rm", "+(a)", "!(a)", "\\\\", "\\'", '\\"'),
)
"""What a shell may take for something else than it looks like."""


class Shell:
    def __init__(self, judge: Judge, jail: Jail) -> None:
        self._judge = judge
        self._jail = jail

    async def send(self, mutator: Mutator) -> str:
        """Makes lines until the rule lets one pass, and runs it in each shell."""
        lines = (make_line(mutator) for _ in range(TRIES))
        line = next(filter(self._is_let_pass, lines), "a")
        mutator.sent = line
        await self._check(line)
        return "let pass"

    async def check_alive(self) -> None:
        if self._is_let_pass("a; rm") or not self._is_let_pass("a; git push"):
            raise Wrong("the rule does not hold any more")
        await self._check("a; git push")

    def _is_let_pass(self, line: str) -> bool:
        call = build_call("claude-code", "Bash", {"command": line}, "/work")
        return self._judge.find_requirement(call).needs is None

    async def _check(self, line: str) -> None:
        seen = Counter(command.words for command in read_commands(line) or ())
        for shell in SHELLS:
            ran, files = await self._jail.run(shell, line)
            unseen = Counter(map(tuple, ran)) - seen
            if unseen or files or not {words[0] for words in ran} <= {*ALLOWED}:
                raise Wrong(f"{shell} ran {ran} and left {files} after {line!r}, in which a rule saw {dict(seen)}")


def make_line(mutator: Mutator) -> str:
    """Return a line of a few commands, in most cases with something odd in it, or something missing."""
    line = ""
    for _ in range(mutator.pick((1, 1, 2, 3, 6))):
        words = (mutator.pick(BLANKS) + mutator.pick(WORDS) for _ in range(mutator.pick((0, 1, 2, 4))))
        line += mutator.pick(PROGRAMS) + "".join(words) + mutator.pick(REDIRECTIONS) + mutator.pick(ENDS)
    if mutator.chance(0.8):
        line = line.rstrip("&|; \\\n")
    for _ in range(mutator.pick((0, 0, 0, 1, 1, 2))):
        place = mutator.random.randrange(len(line) + 1)
        line = line[:place] + mutator.pick((*ODD, *BLANKS, *ENDS)) + line[place + mutator.pick((0, 0, 1)) :]
    return line


@asynccontextmanager
async def open_shell(home: Path) -> AsyncGenerator[Shell]:
    (home / "planwarden.toml").write_text(RULES, encoding="utf-8")
    root = home / "jail"
    root.mkdir()
    async with open_jail(root) as jail:
        yield Shell(build_judge(load_settings(home=home, environment={"HOME": str(home)})), jail)

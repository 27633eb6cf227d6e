"""Reads the words of a command: the options of its program with their values, its operands, and what follows them.

One table says for each program which options it has. An option that the table does not name is unknown: a command with
an unknown option proves nothing, and a wrapper with one may run something that was not seen.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

import msgspec

Kind = Literal["flag", "value", "count", "folder", "path", "line", "setting", "unknown"]
_KINDS: Mapping[str, Kind] = {"": "flag", "=": "value", "#": "count", ">": "folder", "/": "path", "!": "line"}
"""What value the option takes, by the sign after its name in the table: none, a text (the sign may be followed by a
pattern), a number if a number follows, the program's working folder, another path, or a command line."""


class Program(msgspec.Struct, frozen=True):
    """Describes the words of one program."""

    options: str = ""
    """Names with the signs of `_KINDS`. After `-`, each letter is an option."""
    operands: int = 0
    """The number of words between the options and the command."""
    then: Literal["command", "line", "first", "script", "guess", "git", "module", "nothing"] = "nothing"
    """What follows the options: a command; a command line in several words (`line`) or in the first one (`first`); a
    shell's script; a command after the word that `behind` matches, or anywhere (`guess`); git's; a Python module."""
    is_closed: bool = True
    """Whether the program's words show all that it may run."""
    behind: str = ""
    """A pattern of the word before the command; if the pattern captures text, that text is the command's first word."""
    exits: bool = False
    """Whether the program ends with the exit code of the command that it runs."""
    only: str = ".*"
    """A pattern of operands; with an operand that does not match, the program may do something else."""
    tail: str = ""
    """The name of the program that reads the words behind `--`."""
    values: str = "(?s).*"
    """A pattern of the values of the options that have no pattern of their own."""
    is_long: bool = False
    """Whether the program reads `-name` as other programs read `--name`."""


class Option(msgspec.Struct, frozen=True):
    word: str
    name: str
    value: str | None
    kind: Kind
    end: int
    """The number of words up to the end of this option."""


_SHELL = (
    "-abcefhiklmnpruvxBCDEHPTqdwfyIV login norc noprofile posix restricted verbose noediting debugger "
    "pretty-print -oO= rcfile= init-file="
)
_SCRIPT = (
    "bail ci colors coverage detectOpenHandles fix forceExit no-cache no-color no-coverage run runInBand silent "
    "verbose pool reporter reporters maxWorkers# testTimeout# watch=false watchAll=false"
)
_NPM = "-qs foreground-scripts include-workspace-root quiet silent workspaces ws -w= loglevel= workspace= -C> prefix/"
_PLAIN = r"[\w.@<>=~!,-]+"
_ENV_FILE = r"(?:[\w-]+/)*[\w-]*\.env(?:\.\w+)?"
_NO_COMMAND = r"(?!(?:bench|init|list|related)\Z).*"
_LOGGING = r"(?:log|junit|verbosity|console|cache)_\w+\s*=.*"
"""Settings of pytest that do not prevent any test from running."""
_UNTESTED = r"(?i:(?:.*:)?(?:\w*lint\w*|spotless\w*|checkstyle\w*|detekt\w*|pmd\w*|spotbugs\w*|javadoc|dokka\w*))"
"""Tasks of Gradle that test nothing."""
_TABLE: Mapping[str, Program] = {
    "env": Program(
        "-i0v ignore-environment null debug -u= unset= -C> chdir> -S! split-string!", then="command", exits=True
    ),
    "sudo": Program(
        "-ABbEHKknPSsil askpass background bell login non-interactive preserve-env preserve-groups "
        "reset-timestamp set-home shell stdin remove-timestamp -CDghpRrtTUu= close-from= chdir= group= host= "
        "prompt= chroot= role= type= command-timeout= other-user= user=",
        then="command",
    ),
    "su": Program(
        "-lmpP login preserve-environment pty -gGsw= group= supp-group= shell= -c! command!",
        then="command",
        operands=99,
        is_closed=False,
    ),
    "command nohup": Program(then="command", exits=True),
    "exec": Program("-cl -a=", then="command"),
    "setsid": Program("-cfw ctty fork wait", then="command"),
    "time": Program("-apvq append portability verbose quiet -of= output= format=", then="command"),
    "timeout": Program(
        "-vfp foreground preserve-status verbose -ks= kill-after= signal=", then="command", operands=1, exits=True
    ),
    "nice": Program("-0123456789 -n= adjustment=", then="command", exits=True),
    "ionice": Program("-t ignore -cn= class= classdata=", then="command", exits=True),
    "stdbuf": Program("-ioe= input= output= error=", then="command", exits=True),
    "flock": Program(
        "-senxuoFv shared exclusive nonblock unlock close no-fork verbose -wE= timeout= -c!", then="command", operands=1
    ),
    "caffeinate": Program("-disum -tw=", then="command", exits=True),
    "builtin busybox toybox": Program(then="command"),
    "eval": Program(then="line"),
    "watch": Program("-bcdegptwx beep color differences errexit chgexit no-title exec -nq= interval=", then="line"),
    "trap": Program("-lp", then="first"),
    "script": Program(
        "-aefq append return flush quiet -EmOIBT= log-in= log-out= log-io= log-timing= -c! command!",
        then="command",
        operands=99,
        is_closed=False,
    ),
    "xargs": Program(
        "-0prtx null interactive no-run-if-empty verbose exit -adEILnPs= arg-file= delimiter= max-args= "
        "max-procs= max-chars=",
        then="command",
        is_closed=False,
    ),
    "at batch": Program(then="command", is_closed=False),
    "parallel": Program(then="line", is_closed=False),
    "sh bash dash zsh ksh ash mksh rbash": Program(_SHELL, then="script"),
    "fish csh tcsh nu elvish xonsh pwsh": Program(_SHELL, then="script", is_closed=False),
    "git": Program(
        "-pPhv paginate no-pager bare no-replace-objects no-lazy-fetch no-optional-locks no-advice "
        "literal-pathspecs glob-pathspecs noglob-pathspecs icase-pathspecs exec-path html-path man-path "
        "info-path version help -c= work-tree= namespace= super-prefix= config-env= list-cmds= attr-source= "
        "-C> git-dir/",
        then="git",
    ),
    "uv": Program(
        "-nqv all-extras all-groups exact frozen isolated locked no-cache no-dev no-sync offline quiet "
        f"verbose -p={_PLAIN} env-file={_ENV_FILE} extra= group= only-group= python={_PLAIN} with={_PLAIN} directory> "
        "project/",
        then="guess",
        behind="run",
        only="run",
        exits=True,
    ),
    "poetry pipenv hatch pdm rye": Program("-q quiet", then="guess", behind="run", only="run", exits=True),
    "conda mamba": Program(then="guess", behind="run"),
    "bundle mise": Program(then="guess", behind="exec|x", exits=True),
    "direnv": Program(then="guess", behind="exec|x"),
    "npm": Program(_NPM, then="guess", behind="exec|x", only=_NO_COMMAND, tail="npm-script", exits=True),
    "pnpm": Program(
        f"-qsw quiet silent workspace-root loglevel= -C> dir> prefix/ {_SCRIPT}",
        then="guess",
        behind="exec|x",
        only=_NO_COMMAND,
        tail="npm-script",
        exits=True,
    ),
    "yarn": Program(f"-s cwd> {_SCRIPT}", then="guess", behind="exec|x", only=_NO_COMMAND, tail="npm-script"),
    "fd fdfind": Program(then="guess", behind="-[A-Za-z0-9]*[xX](.*)|--exec(?:-batch)?(?:=(.*))?"),
    "npx bunx": Program("-qy bun no-install quiet yes -p= package=", then="command", exits=True),
    "uvx pipx hyperfine entr perf ltrace valgrind gdb pkexec runuser setpriv unshare nsenter bwrap "
    "firejail fakeroot faketime sem systemd-run systemd-inhibit dbus-run-session start-stop-daemon prlimit "
    "numactl rlwrap cpulimit choom torsocks proxychains nix-shell dotenv tmux screen run0 doas chrt taskset unbuffer "
    "setarch chroot strace": Program(then="guess"),
    "python pypy": Program("-BEIPSbdqsuv -WX= check-hash-based-pycs= -cm!", then="module"),
    "coverage": Program("-ap append branch parallel-mode source= -m!", then="module", behind="run"),
    # Only harmless options are listed below: with them, a program still does its work, and fails if its work fails.
    "pytest py.test": Program(
        "-lqsvx cache-clear disable-warnings exitfirst failed-first ff full-trace last-failed lf new-first nf "
        "no-header no-summary quiet showlocals strict-config strict-markers verbose -kmnr= -W=error.* "
        f"-o={_LOGGING} -p=no:(?:cacheprovider|randomly|warnings) basetemp= capture= color= cov= "
        "cov-report= dist= durations= durations-min= junit-xml= junitxml= log-cli-level= "
        f"asyncio-mode= import-mode= log-file= log-level= maxfail= numprocesses= override-ini={_LOGGING} "
        "randomly-seed= reruns= tb= timeout= verbosity= "
        "-c/ confcutdir/ rootdir/",
        only="[^@].*",
        values="(?s)(?!@).*",
    ),
    "unittest": Program("-bfqv buffer failfast locals quiet verbose -k="),
    "make gmake": Program(
        "-BORSkrsw always-make debug keep-going no-builtin-rules no-builtin-variables no-print-directory "
        "output-sync print-directory quiet silent trace warn-undefined-variables -jl# jobs# load-average# -C> "
        "directory>"
    ),
    "jest vitest npm-script": Program(f"-i {_SCRIPT}", only=_NO_COMMAND),
    "tsc": Program("noEmit pretty skipLibCheck strict -p/ project/"),
    "eslint": Program(r"cache color fix no-color cache-location= ext= format= -f= max-warnings=\d+"),
    "mypy": Program("-v no-color-output no-incremental pretty show-error-codes strict verbose"),
    "ruff": Program("-nqs fix no-cache preview quiet silent output-format="),
    "go gotestsum": Program(
        r"a asan benchmem cover failfast json msan race trimpath v x bench= benchtime= count=[1-9]\d* covermode= "
        "coverpkg= coverprofile= cpu= mod= p= parallel= shuffle= tags= timeout= -C>",
        is_long=True,
    ),
    "cargo cross": Program(
        r"-qv +=[\w.-]+ all all-features all-targets frozen locked no-default-features no-fail-fast offline quiet "
        "release verbose workspace -Fp= color= features= message-format= package= profile= target= "
        "target-dir= -j# jobs# manifest-path/",
        tail="cargo-test",
    ),
    "cargo-test": Program("-q -DF= deny= forbid= include-ignored nocapture quiet show-output color= test-threads="),
    "gradle gradlew": Program(
        "-iqs build-cache continue daemon info no-build-cache no-daemon no-parallel offline parallel quiet "
        f"rerun-tasks stacktrace -x={_UNTESTED} console= exclude-task={_UNTESTED} max-workers= tests= -p/ "
        "project-dir/"
    ),
    "mvn mvnw": Program(
        "-BUXeoq am also-make batch-mode errors fae fail-at-end fail-fast ff no-transfer-progress ntp offline "
        "quiet -T= color= pl= projects= threads= -f/ file/",
        is_long=True,
    ),
    "dotnet": Program("-clvf= blame collect= configuration= framework= logger= nologo results-directory= verbosity="),
    "ctest": Program(
        "-QV extra-verbose no-tests=error output-on-failure progress quiet schedule-random stop-on-failure verbose "
        "-j# parallel# -C= build-config= output-junit= timeout= test-dir>"
    ),
    "deno": Program(
        "-Aq allow-all allow-env allow-ffi allow-net allow-read allow-run allow-sys allow-write coverage fail-fast "
        "parallel quiet trace-leaks reporter="
    ),
    "tox": Program("-qrv recreate -efm= result-json= -p=\\d+|all|auto -c/", only="run|r|p", tail="pytest"),
    "nox": Program("-NRrsv e= no-reuse-venv reuse-existing-virtualenvs session= sessions= verbose", tail="pytest"),
    "rspec": Program("-bcw backtrace color fail-fast force-color no-color profile warnings -fo= format= order= seed="),
    "bun": Program("bail coverage coverage-reporter= rerun-each= timeout="),
    "mix": Program("color cover no-color trace warnings-as-errors max-cases= seed= timeout="),
    "just": Program("-qv quiet verbose"),
}
PROGRAMS = {name: program for names, program in _TABLE.items() for name in names.split()}


def read_options(program: Program, words: Sequence[str], most: int) -> tuple[list[Option], list[str], Sequence[str]]:
    """Return the options, the operands between them (at most `most`), and the words that follow."""
    kinds = _list_kinds(program)
    options, operands, index = list[Option](), list[str](), 0
    while index < len(words):
        word = words[index]
        if word == "--":
            return options, operands, words[index + 1 :]
        if not word.startswith(("-", "+")) and (most or "=" not in word):
            if len(operands) == most:
                break
            operands.append(word)
        index += 1
        if word.startswith(("-", "+")) and word != "-":
            name, value = _split_word(word, kinds, is_long=program.is_long)
            kind, pattern = kinds.get(name, ("unknown", ""))
            following = "".join(words[index : index + 1])
            has_value = following.isdigit() if kind == "count" else kind not in ("flag", "unknown")
            if value is None and has_value:
                value, index = following, index + 1
            if not re.fullmatch(pattern, value or ""):
                kind = "unknown"
            options.append(Option(word, name, value, kind, index))
            if kind == "line" and program.then == "module":
                break
        elif not most and "=" in word:
            options.append(Option(word, "", word, "setting", index))
    return options, operands, words[index:]


@cache
def _list_kinds(program: Program) -> Mapping[str, tuple[Kind, str]]:
    """Return the kind of each option by its name, and the pattern of its value."""
    kinds: dict[str, tuple[Kind, str]] = {}
    for dash, name, sign, pattern in re.findall(r"(-?)([\w-]+|\+)([=#>/!]?)(\S*)", program.options):
        kinds |= dict.fromkeys(name if dash else (name,), (_KINDS[sign], pattern or program.values))
    return kinds


def _split_word(word: str, kinds: Mapping[str, tuple[Kind, str]], *, is_long: bool) -> tuple[str, str | None]:
    """Return the word's first option that is not a flag, or the last if all are, and its value if the word has one."""
    if word.startswith("--") or is_long:
        name, equals, value = word.lstrip("-").partition("=")
        return name, value if equals else None
    if word[0] in kinds:
        return word[0], word[1:]
    index = next(
        (index for index, letter in enumerate(word[1:], 1) if kinds.get(letter, "")[:1] != ("flag",)), len(word) - 1
    )
    return word[index], (word[index + 1 :] or None) if word[index] in kinds else None


def find_program(word: str) -> Program | None:
    """Return what the table says about a program, whatever its folder and version; None if it is not listed."""
    name = word.rpartition("/")[2]
    return PROGRAMS.get(name) or PROGRAMS.get(name.rstrip("0123456789.-"))

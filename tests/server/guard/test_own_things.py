"""What is refused to a model always: planwarden's decisions, its home, the hooks of hosts; quoted, linked, globbed."""

import json
import os
import subprocess
from pathlib import Path
from time import process_time

import pytest
from pydantic import JsonValue

from planwarden.server.cli.program import COMMANDS
from planwarden.server.guard.calls import read_event
from planwarden.server.guard.command_parts import DECIDING_COMMANDS, READING_COMMANDS
from planwarden.server.guard.protected_paths import MAX_FOLDERS, TOO_MUCH, find_refusal
from tests.requirements import requirement


class Machine:
    """A user's home with planwarden's in it, hosts with hooks, and a project."""

    def __init__(self, root: Path, home: str = ".local/share/planwarden", **environment: str) -> None:
        self.root = root
        self.home = root / home
        self.project = root / "shop"
        self.environment = {
            "HOME": str(root),
            "CODEX_HOME": str(root / "own" / "codex"),
            "CLAUDE_CONFIG_DIR": str(root / "own" / "claude"),
            "PATH": os.environ["PATH"],
            **environment,
        }
        for path in (
            *(self.home / "planwarden.toml", root / "own/codex/hooks.json", root / "own/claude/settings.json"),
            *(root / ".gemini/settings.json", root / ".config/opencode/opencode.json"),
            *(self.project / ".claude/settings.json", self.project / "notes.txt"),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("SECRET\n")
        (self.project / "link").symlink_to(self.home)

    def find_refusal(
        self, arguments: dict[str, JsonValue], tool: str = "Bash", host: str = "claude-code", folder: str = "shop"
    ) -> str | None:
        event = {"tool_name": tool, "tool_input": arguments, "cwd": str(self.root / folder)}
        call = read_event(host, json.dumps(event).encode())
        return find_refusal(self.home, self.environment, call)

    def run(self, command: str) -> str:
        ended = subprocess.run(
            ["bash", "-c", command], cwd=self.project, env=self.environment, capture_output=True, text=True, check=False
        )
        return ended.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Machine:
    """A machine whose user keeps data in another place."""
    return Machine(tmp_path, "data/planwarden", XDG_DATA_HOME=str(tmp_path / "data"))


PATTERNS = (
    *("~/.local/share/plan*/plan*", "~/.loc*/*/*/*.toml", "../.l*/s*/p*/planwarden.toml", "l*/planwarden.toml"),
    *("~/.local/share/[op]lanwarden/planwarden.toml", "~/.local/share/?lanwarden/*", "li?k/../planwarden/*.toml"),
    *("/proc/self/cwd/link/planwarden.toml", "/proc/self/root/ROOT/.local/share/planwarden/planwarden.toml"),
    *("/proc/$$/cwd/link/planwarden.toml", "././././link/planwarden.toml", "DOTSlink/planwarden.toml"),
    "~/.local/{share,state}/{other,planwarden}/planwarden.toml",
)


@requirement("guard:own")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_the_shell_finds_in_planwardens_home_is_refused(machine: Machine, pattern: str) -> None:
    pattern = pattern.replace("ROOT", str(machine.root)[1:]).replace("DOTS", "./" * 2_030)
    # The process whose number this is has ended when the other one looks.
    assert "$$" in pattern or machine.run(f"cat {pattern}") == "SECRET\n"
    assert machine.find_refusal({"command": f"cat {pattern}"}) is not None


@requirement("guard:own")
def test_the_homes_of_users_are_expanded_and_what_stands_for_too_much_is_refused(machine: Machine) -> None:
    machine.home = Path(os.path.expanduser("~root"))
    assert machine.find_refusal({"command": "cat ~root/x"}) is not None
    for words in ("/*" * 40, "/{a,b}" * 40, "/*/*/*/{a,b}"):
        assert machine.find_refusal({"command": f"cat {words}"}) == TOO_MUCH
    many = [f"a/{number}" for number in range(5_000)]
    assert machine.find_refusal({"command": "a/b " * 5_000 + "; " + " ".join(many)}) is not None
    assert machine.find_refusal({"paths": [*many]}, "mcp__x__y") is not None
    deep: dict[str, JsonValue] = {"command": " ".join(many[:3_000]), "workdir": "a/" * 2_000}
    assert machine.find_refusal(deep, host="codex") == TOO_MUCH


TAKES_AWAY = (
    *("rm -rf ~/own", "mv ~/.local ~/x", "rm -rf ../.l*", "rm -rf .claude", "rm -r ~/.gemini", "rm -rf ~/.local"),
    *("rm -r ../.local/share", "mv ~/.local mine", "mv ~/own ~/mine", "rm -rf ~/own/codex", "rm -rf ~/.[a-z]*"),
    *("mv .claude old", "cd ~ && rm -rf own", "rm -rf -- ~/own/", "find ~/.local -delete", "rm -rf ../shop"),
    *("sh -c 'rm -rf ~/.local/share'", 'bash -c "cd ~ && rm -rf own"', "eval 'cd ~' && rm -rf own", "cd && rm -rf own"),
    *("env -S 'rm -rf ../.local'", "env -C ~ rm -rf own", "xargs rm -rf <<< ~/own", "echo ~/.local | xargs rm -rf"),
    *("find ../.local | xargs rm -rf", "find ~/own -type d -print0 | xargs -0 rm -rf"),
    *("find ~ -name own -exec sh -c 'rm -rf $1' x {} +", "find . -exec sh -c 'cd ~; rm -rf own' ';'"),
    *("cd ~/own && find -name codex -exec rm -rf {} +", "cd ~/.local && find -delete", "rm -rf ~/.loc*/share"),
    "rm -rf ~/own clean",
    *("rm -rf ~/{own,x}", "{rm,-rf,../own}", "rm -rf $'\\x2e\\056/own'", "$'\\162m' -rf ../o$'wn'"),
    *("rm -rf ${HOME%/}/own", "rm -rf $(echo ~/own)", 'd=`printf ~/own`; rm -rf "$d"'),
    *(
        *("env=../own; rm -rf ${env:0}", "env=../own; rm -rf $env"),
        *("d=../own; rm -rf $d", 'd=~/own && rm -rf "$d"', 'a=~; export b="$a/own"; rm -rf "${b}"'),
        "bash -c 'd=~/own; rm -rf $d'",
        *("find ~/own | while read -r f; do rm -f $f; done", "ls -d ~/own | while read d; do rm -rf $d; done"),
        *("for d in x ~/own; do rm -rf $d; done", "d=../ow; rm -rf ${d}n", "r=rm; $r -rf ../own"),
        "bash <<< 'rm -rf ../own'",
        "sh <<E\ncd ~\nrm -rf own\nE",
        "bash -c \"bash -c 'rm -rf ../own'\"",
        "r\\m -rf ../ow'n'",
        "bash -cm 'rm -rf ../own' git",
    ),
    "python3 -c 'import shutil; shutil.rmtree(\"../own\")'",
    "python3 <<E\nfrom shutil import *\nrmtree('../own')\nE",
    *('python3 -Ic \'import subprocess as s; s.run(["rm", "-rf", "../own"])\'', "trap 'rm -rf ../own' EXIT"),
    *("git -c alias.x='!rm -rf ~/own' x", "make -f - <<< 'x:; rm -rf ../own'", "make --eval='x:; rm -rf ../own' x"),
    "awk 'BEGIN { system(\"rm -rf ../own\") }'",
    "tar cf x . --checkpoint=1 --checkpoint-action=exec='rm -rf ../own'",
)


@requirement("guard:own")
@pytest.mark.parametrize("command", TAKES_AWAY)
def test_what_would_take_a_hook_or_the_home_away_is_refused(machine: Machine, command: str) -> None:
    watched = [
        *(machine.home, machine.root / "own/codex/hooks.json", machine.root / "own/claude/settings.json"),
        *(machine.project / ".claude/settings.json", machine.root / ".gemini/settings.json"),
    ]
    assert machine.find_refusal({"command": command}) is not None
    machine.run(command)
    assert not all(path.exists() for path in watched)


SEEKS = (
    *("find . -name '*.log' -delete", "find . -name __pycache__ -type d -exec rm -rf {} +"),
    *("find ~ -iname '*.PYC' -delete", "find . -name node_modules -prune -o -name '*.log' -delete"),
    *("find . -name '*.png' -exec mv {} . \\;", "find . \\( -name '*.pyc' -o -name '*.pyo' \\) -delete"),
    "find . ! -path './.git/*' -name '*.orig' -delete",
)
FINDS = (
    *("find . -name '*.json' -delete", "find . -name .claude -exec rm -rf {} +"),
    *("find . -name 's*' -delete", "find . -delete -name '*.log'"),
    *("find . ! -name '*.log' -delete", "find . -name x -exec rm -r .claude +"),
    *("find . -name '*.log' -o -delete", "find . \\( -name '*.log' -o -type f \\) -delete"),
    *("find . ! \\( -name '*.log' \\) -delete", "find . -name x , -delete"),
    *("find ~ -name '*.toml' -delete", "find .. -name SHOP -exec rm -rf {} +"),
    *("find . -iname 'SETTINGS*' -delete", "find . -name '\\.claude' -exec rm -rf {} +", "find . -name $X -delete"),
    *("find -L . -name planwarden.toml -delete", "find . -name '[^a]ettings.json' -delete"),
    "find . -name notes.txt -exec rm -rf {}/../.claude \\;",
)


def test_find_may_delete_files_by_a_name_that_nothing_protected_has(machine: Machine) -> None:
    for command in SEEKS:
        assert machine.find_refusal({"command": command}) is None, command
    for command in FINDS:
        assert machine.find_refusal({"command": command}) is not None, command


READS_ALL = (
    *("grep -r SECRET ~", "grep -rh SECRET ../.local", "cd ~; grep -r SECRET", "tar cf - ~/.local"),
    *("cd ~ && grep -R SECRET .", "cd -P ~ && grep -R SECRET", "builtin cd ~ && grep -R SECRET ."),
    "grep -d recurse S ~",
    *("grep --directories recurse SECRET ~", "grep --recurs S ~", "env -C .. grep -r SECRET", "rgrep SECRET ~ .."),
    "git -C ~ grep --no-index SECRET",
)


@requirement("guard:own")
@pytest.mark.parametrize("command", READS_ALL)
def test_a_command_that_reads_all_below_a_parent_of_the_home_is_refused(machine: Machine, command: str) -> None:
    assert "SECRET" in machine.run(command)
    assert machine.find_refusal({"command": command}) is not None


DELETES_OR_WRITES = (
    *("cp x -t.claude", "cp -ft.claude x", "install -Dt.claude x", "tar -C.claude -xf x", "cp -av ~/data /x"),
    "git grep --no-index x ~",
    *("env -C ~/data sh <<EOF\nrm -rf planwarden\nEOF", "env -C ~/data $(echo rm -rf planwarden)"),
    *("env --chdir=../data cat planwarden/planwarden.toml", "git -C ~/data show x:planwarden/planwarden.toml"),
    *("make -C ~/data -f planwarden/planwarden.toml", "7za a x.7z ~/data", "cd -- ~/data; cat planwarden/x"),
    *("fd . ~ -xrm", "fd . ~ --exec=rm", "fd -uXrm . ~", "parallel 'rm -rf {}' ::: ~/own", "chmod -R 0 ~/own"),
    *("rsync -e 'rm -rf ~/own' a b:", "rsync -a --delete x/ ~/own", "ssh -oProxyCommand='rm -rf ~/own' x"),
    *("tar -xf x --to-command='rm -rf ~/own'", "git clone -u 'rm -rf ~/own' . x", 'perl -e \'rename "../own", "x"\''),
    *("git clone --conf=core.pager='rm -rf ~/own' a", "git fetch --upload-pack='rm -rf ~/own' ."),
    "EDITOR='rm -rf ~' vipe",
    *("node -e 'fs.rmSync(\"../own\", {})'", "node -e 'fs.promises.rm(\"../own\")'"),
    *("ruby -e 'FileUtils.rm_rf \"../own\"'", "tmux new -d 'rm -rf ~/own'"),
    *("vim -c '!rm -rf ~/own'", "sqlite3 x '.shell rm -rf ~/own'", "sh -c 'cat ~/da\\ta/planwarden/x'"),
    "chdir ~; rm -rf own",
    *("echo 'rm -rf ~' | sh", "printf 'rm -rf ~' > x.sh; bash x.sh", "eval \"$(echo 'rm -rf ~')\""),
    "echo ~ | xargs rm",
    *("echo 'rm -rf ~' > x; chmod +x x; $PWD/x", "echo 'rm -rf ~' | at now", "echo 'rm -rf ~' | ssh localhost"),
    *("echo 'rm -rf ~' | awk '{ system($0) }'", "echo 'x:; rm -rf ~' > Makefile; gmake"),
    "echo 'rm -rf ~' | $(echo sh)",
    *("cat > x.sh <<'E'\nrm -rf ~\nE\n~/x.sh", "cat '<<E'\nrm -rf ~\nE", "cat <<E-x\nE-x\nrm -rf ~\nE"),
    "cat > x <<'E'\n$(echo E)\ncat <<'F'\nE\nrm -rf ~\nF",
    *("true '\ncat <<E\n'; rm -rf ~\n:\nE", "x=1 # cat <<E\nrm -rf ~\nE", "cat <<E \\\n; rm -rf ~\nE"),
    *("cat <<'E' | bash\nrm -rf ~\nE", "cat > x.sh <<'E' && ./x.sh\nrm -rf ~\nE", "cat > x.sh <<E\n$(rm -rf ~)\nE"),
    *("cat > x.sh <<'E'\nrm -rf ~\nE\ngit push --receive-pack=./x.sh .", "echo 'rm -rf ~' > Makefile; git push"),
    *("cat > .git/hooks/pre-push <<'E'\nrm -rf ~\nE\ngit push", "tee .husky/commit-msg <<E\nrm -rf ~\nE\ngit commit"),
    *("cat <<'E' | git apply\n+++ b/.mcp.json\nE", "cat <<'E'\nE\nrm -rf ~", "cat <<'E' > .mcp.json\n{}\nE"),
    "# cat <<E\nrm -rf ~",
    *("docker run -v ~:/x y rm -rf /x", "docker run -v $HOME:/h y sh -c 'rm -rf /h/*'"),
    "docker run --volume=/:/r y rm -rf /rROOT",
    "docker run --mount type=bind,src=$HOME,dst=/x y rm -rf /x",
    *("docker run --mount target=/x,type=bind,source=$HOME y rm -rf /x", "docker run -v~:/x/ -w /x y rm -rf own"),
    "rm -rf $(pwd)/..",
    'podman run -v "$(pwd)":/x y rm -rf /x/../own',
    "docker run -v ~/own:/x y sh -c 'echo {} > /x/claude/settings.json'",
    *("Remove-Item -Recurse -Force ~", "remove-item $env:HOME -r", "rd /s /q .claude", "pwsh -c 'Move-Item ~ x'"),
    "RM -rf ~",
    *("git clean -fdx", "cd .. && git clean -xfd", "git -C ~ clean -ffdx", "git clean -fX -e x .."),
    "git clean -fdx -- .",
    *("jq . .mcp.json | sponge .mcp.json", "cat .claude/settings.json; rm .claude/settings.json"),
    "python x.py .mcp.json",
    *("git show HEAD:.mcp.json>.mcp.json", "git diff --output=.mcp.json", 'python -c \'open(".mcp.json", "w")\''),
    *("git log $(printf %sut --o)put=.mcp.json", "git log --o$(printf  ut)put=.mcp.json"),
    *("git log $(printf --o x)utput=.mcp.json", "git log --o$(echo -n ut)put=.mcp.json"),
    *("ls .claude/skills | xargs rm", "rm $(ls .mcp.json)", "for f in `ls .mcp.json`; do rm $f; done"),
    *("PAGER=rm git log .mcp.json", "node --redirect-warnings=.mcp.json x", "git diff --outpu .mcp.json"),
    *("rm -rf ~", "rm -rf ../*", "find ~ -name x -exec rm -rf {} +", "tar -C ~/.gemini -xf x", "cp -r evil .claude"),
    *("cp settings.json ~/own/claude", "cp -r evil ~/own/codex/", "echo x > .cl*/sett*.json"),
    *("f=.mcp.json; echo {} > $f", "cp x .claude/x; S=.claude\njq . x > $S/settings.json"),
    *("echo x > ~/own/claude/settings.json", "echo x >> ~/own/codex/config.toml", "tee ~/own/claude/agents/a.md"),
    *("cp x ~/.gemini/extensions/e/gemini-extension.json", "cp x .opencode/tool/x.ts", "cp x .claude/skills/a/x.sh"),
    *("cp x ~/own/codex/skills/x", "ln -s /tmp/x ~/.config/opencode/agent", "cp x .cursor/plugins/y"),
)
DECIDES = (
    *("p=planwarden; $p approve 1", "planwarden approve 1", "planwarden  approve 1", "/usr/bin/planwarden reject 1"),
    "plan''warden approve 1",
    *("'planwarden' approve", "planwar\\den approve", "ls; planwarden approve 1", "ls && planwarden trust x"),
    *("sh -c 'planwarden approve 1'", 'bash -lc "cd /; planwarden approve 1"', "env X=1 planwarden approve 1"),
    *("X=1 planwarden approve 1", "echo $(planwarden approve 1)", "echo `planwarden approve 1`"),
    *("(planwarden inbox)", "planwarden --home /x approve 1", "planwarden run p --yes", "planwarden once forget x"),
    *("planwarden grant add x", "planwarden guard uninstall claude-code", "uvx planwarden approve 1"),
    *("echo '{}' | planwarden guard hook codex", "planwarden guard trust-folder"),
    *("python -m planwarden.server.main code", "python3.12 -m planwarden.server.main approve"),
    *("flock /tmp/l planwarden approve 1", "taskset 1 planwarden approve 1", "strace -f planwarden approve 1"),
    *("busybox sh -c 'planwarden approve 1'", "ionice -c2 planwarden approve 1", "npx -y planwarden approve 1"),
    *("npm exec planwarden approve 1", "python -mplanwarden.server.main approve 1", "python3 -Implanwarden approve"),
    *("timeout 5 planwarden approve 1", "xargs planwarden approve", "planwarden serve", "planwarden"),
    *("nohup planwarden worker &", "if true; then planwarden approve 1; fi", "find . -exec planwarden approve 1 +"),
    *("planwarden list --yes", "echo x | planwarden approve 1", 'python -c "from planwarden import x"'),
    *("sudo -u ann planwarden approve 1", "uvx planwarden@latest approve", "PLANWARDEN_HOME=/tmp/x planwarden list"),
    *("git bisect run planwarden approve 1", "git rebase -i --exec='planwarden approve 1' HEAD", "uv run planwarden"),
    *("git submodule --quiet foreach 'planwarden approve 1'", "npm exec -c 'planwarden approve 1'", "env planwarden"),
    *("echo approve 1 | xargs planwarden", "uv run --with x planwarden", "tmux new -d 'planwarden approve 1'"),
    *("python -XX -c 'import planwarden'", "python -bWX -c 'import planwarden'"),
    *("python -X dev -c 'import planwarden'", "python -Wimport -Bc 'import planwarden'"),
    *("uv run python -W ignore -c 'import planwarden'", "python -IX dev -mplanwarden approve 1"),
    *("perl -e 'system(\"planwarden approve 1\")'", "git -c alias.x='!planwarden approve 1' x"),
    *("node -e 'x.execSync(\"planwarden approve 1\")'", "tar -xf x --to-command='planwarden approve 1'"),
    *("ssh -oProxyCommand='planwarden approve 1' x", "GIT_EDITOR='planwarden approve 1' git commit"),
    "a$'\\x2e'; planw$'arden' trust x",
    *("grep x $PLANWARDEN_HOME/x", "node -e 'process.env.PLANWARDEN_HOME'", "export PLANWARDEN_HOME=/x; git status"),
)
NAMES_THE_HOME = (
    *("cat ~/data/planwarden/planwarden.toml", "echo x > ~/data/planwarden/planwarden.toml", "cat link/planwarden.db"),
    *("rm -r $HOME/data/planwarden", "cat ${XDG_DATA_HOME}/planwarden/planwarden.db", "cat ../data/planwarden/x"),
    *("cat ../data/../data/./planwarden/x", "sqlite3 ~/data/planwarden/planwarden.db 'delete from x'"),
    *("cat ~/data/planw*/planwarden.toml", "cat ~/data/?lanwarden/x", "cd ../data/planwarden && cat planwarden.toml"),
    *("cd ~/data; cd planwarden; ls .", "cp --target-directory=../data/planwarden x", "tar -C../data/planwarden -x"),
    "ls '~/data'/planwarden ; cat ../data/planwarden",
)
WRITES_A_HOOK = (
    *("sed -i s/a/b/ .claude/settings.json", "cat x > .CLAUDE/settings.json", "cd .claude && echo {} > settings.json"),
    "rm ~/.config/opencode/plugins/planwarden-guard.js",
)


@requirement("guard:own")
@pytest.mark.parametrize("command", [*DELETES_OR_WRITES, *DECIDES, *NAMES_THE_HOME, *WRITES_A_HOOK])
def test_a_command_that_decides_names_the_home_or_writes_host_code_is_refused(elsewhere: Machine, command: str) -> None:
    assert elsewhere.find_refusal({"command": command.replace("ROOT", str(elsewhere.root))}) is not None


def test_a_refusal_names_the_word_that_leads_to_what_is_protected(elsewhere: Machine) -> None:
    for command in ("cd ../data/planwarden && ls a b c", "if true; then cd .claude/settings.json && rm -rf x; fi"):
        refusal = elsewhere.find_refusal({"command": command})
        assert refusal is not None
        assert refusal.startswith(f"it names {command.partition('cd ')[2].split()[0]!r}, "), refusal


ORDINARY = (
    'timeout 60 git commit -m "Update planwarden docs"',
    *("rm -rf $(echo build dist)", "echo $(echo rm -rf ~)"),
    *("rm -rf my-app/", "rg TODO my-app/", "cp -r src my-app/", "mv old-name/ new-name", "tar czf x.tgz my-app/"),
    *("d=build; rm -rf $d", 'T=$(mktemp -d); rm -rf "$T"', 'for d in packages/*; do rm -rf "$d/dist"; done'),
    "x=~; ls $x",
    *("b='it does'; echo \"$b\" rm -rf ~", "rm -rf ${BUILD:-build}", "D=build; rm -rf ./$D/*"),
    *("find . -name '*.tmp' | while read f; do rm \"$f\"; done", "cat x | while read d; do cd $d; rm y; cd ..; done"),
    "for i in " + "1 " * 200 + "; do rm f$i; done",
    *("Remove-Item -Recurse -Force build", "jq 'del(.x)' a.json", "Get-ChildItem ~"),
    *("git clean -fdx build", "git clean -fdxn", "git clean -fdx -e .claude", "git clean -fd", "npm run clean -- -x"),
    *("cat .claude/settings.json", "ls .claude/commands && git add .claude/commands/a.md"),
    "[ -f .mcp.json ] && jq . .mcp.json",
    *("python3 .claude/skills/a/run.py x", "bash .claude/hooks/a.sh", "git diff .mcp.json | head"),
    "if grep -q x .mcp.json; then ls; fi",
    *("rm -rf build", "rm -rf build/tmp/home", "mv notes.txt ~", "mv a.txt ..", "cp notes.txt ~", "rm ~/notes.txt"),
    *("rm -rf node_modules/*", "cp -r src ~/backup", "ls .claude", "grep -r x src", "tar czf ~/x.tgz src", "ls ~"),
    *("cp -av src lib", "cp -t lib x", "make -C ../.. test && tar czf x.tgz .", "git -C ../.. status && rg TODO"),
    *("ls -C / && rg x", "git -C lib status", "grep -C 3 x notes.txt", "tar -C lib -xf x"),
    *("git commit -m 'rm -rf ~/.local (really)'", "gh pr create --title x --body 'Do not rm -rf ~ (please)'"),
    *("gh issue create -t 'rm -rf ~ breaks' -b 'Do not rm -rf ~'", "gh release create v1 -n 'Do not rm -rf ~'"),
    *("echo 'rm -rf ~'", "printf 'rm -rf ~\\n'", "echo rm -rf . >> a.log", "bash -lc \"echo 'rm -rf ~'\""),
    "echo '(mv ~ x)'",
    *("docker run x sh -c 'rm -rf ~'", "docker exec web rm -rf /", "kubectl exec web -- sh -c 'cd / && rm -rf ~'"),
    "docker run -v $PWD:/app -w /app node sh -c 'rm -rf dist && npm test'",
    "docker run -v $(pwd):/a x rm -rf /a/dist",
    *("docker compose exec web sh -c 'rm -rf /app/*'", "docker run -v ./build:/out x find /out -delete"),
    "sudo docker run x rm -rf /",
    *("git log --grep='rm -rf ~'", "git log --grep 'rm -rf .' -i", "git log -S 'rm -rf ~'", "git log -G'rm -rf ~ x'"),
    "git commit -m \"$(cat <<'EOF'\nClean up\n\nrm -rf ~ ran, and .claude/settings.json was lost.\nEOF\n)\"",
    "git commit -m \"$(cat <<'EOF'\nChange .mcp.json\nEOF\n)\" && git push -u origin main",
    *("cat >> AGENTS.md <<'E'\nNever run rm -rf ~ (ever).\nE", "tee a.md <<E\nedit .mcp.json\nE\nls"),
    *("rg 'rm -rf ~' docs", "find . -name x | xargs rm -f", "bash -c 'cd src && rm -rf build'", "sh -c 'rm x; ls ~'"),
    *("python -c \"import os; os.remove('x'.replace('.', '/'))\"", "sed -i 's/remove(x)/delete(y)/' src/a.py"),
    *("cat > a.py <<E\nos.remove('..')\nE", "git commit -F - <<E\nRemove (see ../x) and move ~ away\nE"),
    *("find src -name '*.pyc' -delete", "rg TODO", "grep -rn x .", "git clean -n", "docker run --rm -v ~:/x y"),
    "curl -d '[" + ",".join(['{"a":[1,2],"b":{"c":"x/y"}}'] * 300) + "]' https://example.com/a?b=c",
    "rm -f " + "a " * 8_000 + "; rm a" * 1_000,
    *("planwarden list", "planwarden show x", "planwarden doctor", "planwarden --version"),
    *("planwarden --home x show", "git commit -m 'let planwarden approve it'", "ls planwarden"),
    *("cd planwarden && ls", "grep -r planwarden .", "echo planwarden approve", "npm test"),
    *("npm run planwarden", "git grep planwarden", "taskset 1 planwarden list", "python -mplanwarden.server.main list"),
    *("uv run mypy src/planwarden", "uv run --with planwarden pytest --cov planwarden", "uv add planwarden"),
    *("python -m pytest tests/planwarden -k 'planwarden and x'", "find . -name planwarden", "fd planwarden src"),
    *("timeout 60 git clone https://github.com/x/planwarden", "command -v planwarden", "npx x packages/planwarden"),
    *("grep -rn PLANWARDEN_HOME docs", "git commit -m 'Say what PLANWARDEN_HOME is'", "xargs rm planwarden"),
    "python -W ignore -m pytest -c planwarden/pytest.ini",
    *("cat notes/settings.json", "pip show planwarden", 'cat "/nowhere/../"'),
)


@pytest.mark.parametrize("command", ORDINARY)
def test_ordinary_work_and_a_command_that_only_names_planwarden_may_run(elsewhere: Machine, command: str) -> None:
    assert elsewhere.find_refusal({"command": command}) is None


@requirement("guard:own")
@pytest.mark.parametrize(
    ("host", "tool", "arguments", "folder"),
    [
        ("claude-code", "Grep", {"pattern": "x"}, ""),
        ("claude-code", "Grep", {"pattern": "x", "path": "~"}, "shop"),
        ("claude-code", "Grep", {"pattern": "x", "path": ".."}, "shop"),
        ("claude-code", "Glob", {"pattern": "**/*.toml"}, ""),
        ("claude-code", "Glob", {"pattern": "~/.l*/**"}, "shop"),
        ("claude-code", "Glob", {"pattern": "share/**", "path": "../.local"}, "shop"),
        ("codex", "grep_files", {"pattern": "x"}, ".local"),
        ("gemini", "search_file_content", {"pattern": "x"}, ""),
        ("gemini", "read_many_files", {"include": ["src/*", "../**"]}, "shop"),
        ("gemini", "glob", {"pattern": "*", "dir_path": "/"}, "shop"),
        ("opencode", "list", {}, ""),
        ("cursor", "Grep", {"pattern": "x"}, ".local/share"),
    ],
)
def test_a_tool_that_searches_below_a_parent_of_the_home_is_refused(
    machine: Machine, host: str, tool: str, arguments: dict[str, JsonValue], folder: str
) -> None:
    assert machine.find_refusal(arguments, tool, host, folder) is not None
    assert machine.find_refusal({"pattern": "x", "path": "shop"}, "Grep", folder="") is None
    assert machine.find_refusal({"pattern": "src/**"}, "Glob") is None


@requirement("guard:own")
def test_a_tool_that_deletes_or_moves_a_folder_above_them_is_refused(machine: Machine) -> None:
    for tool in ("mcp__files__delete_directory", "mcp__files__move_file", "Delete"):
        assert machine.find_refusal({"path": str(machine.root / ".local")}, tool) is not None
        assert machine.find_refusal({"path": "build"}, tool) is None
    assert machine.find_refusal({"path": str(machine.root)}, "mcp__files__list_directory") is None


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Write", {"file_path": "HOME/x", "content": ""}),
        ("Read", {"file_path": "HOME/planwarden.toml"}),
        ("Grep", {"pattern": "x", "path": "HOME"}),
        ("Edit", {"file_path": "link/planwarden.toml", "old_string": "a", "new_string": "b"}),
        ("mcp__files__write", {"where": {"to": ["HOME/x"]}}),
        ("mcp__files__write", {"uri": "file://HOME/x"}),
        ("Write", {"file_path": "../shop/.claude/settings.json", "content": ""}),
        ("Write", {"file_path": ".claude/settings.local.json", "content": ""}),
        ("Write", {"file_path": "sub/.mcp.json", "content": ""}),
    ],
)
@requirement("guard:own")
def test_a_tool_that_names_the_home_or_a_hook_is_refused(
    elsewhere: Machine, tool: str, arguments: dict[str, JsonValue]
) -> None:
    named = json.loads(json.dumps(arguments).replace("HOME", str(elsewhere.home)))
    assert elsewhere.find_refusal(named, tool) is not None


def test_each_command_of_planwarden_either_only_reads_or_is_refused_to_a_model() -> None:
    assert {*COMMANDS} - READING_COMMANDS == DECIDING_COMMANDS


def test_a_patch_is_looked_through(elsewhere: Machine) -> None:
    changes = "*** Update File: .codex/config.toml", "*** Add File: ../data/planwarden/x", "+++ b/.codex/hooks.json"
    for line in (*changes, f"  {changes[0]}", f"\t{changes[1]}", f"\u00a0{changes[0]}"):
        patch = f"*** Begin Patch\n{line}\n@@\n-a\n+b\n*** End Patch"
        assert elsewhere.find_refusal({"command": patch}, "apply_patch", "codex") is not None


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Read", {"file_path": ".claude/settings.json"}),
        ("Write", {"file_path": "docs/guard.md", "content": "see ~/.claude/settings.json\nand planwarden approve"}),
        ("Write", {"file_path": "a.txt", "content": ".claude/settings.json"}),
        ("Edit", {"file_path": "settings.json", "old_string": ".mcp.json", "new_string": "x"}),
        ("Grep", {"pattern": "PLANWARDEN_HOME", "path": "docs"}),
        ("WebFetch", {"url": "https://example.com/.claude/x", "prompt": "planwarden"}),
    ],
)
def test_words_about_them_are_not_refused(elsewhere: Machine, tool: str, arguments: dict[str, JsonValue]) -> None:
    assert elsewhere.find_refusal(arguments, tool) is None


@pytest.mark.parametrize("line", ["1" * 32_000 + "x", "a -" + "b" * 32_000 + "."])
def test_one_long_word_does_not_keep_the_guard_busy(elsewhere: Machine, line: str) -> None:
    began = process_time()
    assert elsewhere.find_refusal({"command": line}) is None
    assert process_time() - began < 3


def test_a_command_line_that_changes_its_folder_too_often_is_refused_before_every_word_is_looked_up_in_each(
    elsewhere: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    real = os.path.realpath

    def look(path: str) -> str:
        looks.append(path)
        return real(path)

    monkeypatch.setattr(os.path, "realpath", look)
    for count in (MAX_FOLDERS, 300, 1_900):
        changes = "; ".join(f"cd d{number}" for number in range(count))
        assert elsewhere.find_refusal({"command": changes}) == TOO_MUCH
    assert elsewhere.find_refusal({"command": "; ".join(f"cd d{number}" for number in range(10))}) is None
    assert len(looks) < 1_000

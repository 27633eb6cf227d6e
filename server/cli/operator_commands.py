"""The commands with which an operator looks after a server: their arguments and the names of their handlers."""

from pathlib import Path

from planwarden.server.auth.principals import LOCAL
from planwarden.server.cli.command_parser import CommandGroup

SHELLS = ("bash", "zsh", "fish")
GUARDED = ("claude-code", "codex", "gemini", "opencode", "cursor")
"""What `planwarden.tools.guarded.hosts` describes."""
HOSTS = (
    "claude-desktop",
    "claude-code",
    "vscode",
    "cursor",
    "zed",
    "codex",
    "gemini",
    "goose",
    "opencode",
    "jetbrains",
)
"""What `hosts.CLIENTS` describes: every command reads the names, and only `config print` the rest."""


def add_tools(commands: CommandGroup) -> None:
    """Add what shows and checks the tools and the channels of notifications."""
    tools = commands.add("tools", "tools:handle_tools", "List the tools that plans may name.", uses_servers=True)
    tools.add_argument(
        "query",
        nargs="*",
        metavar="QUERY",
        help="words to search for; best matches first. The name of a tool also shows its arguments and schemas",
    )
    tools.add_argument("--limit", type=int, metavar="N", help="number of tools, at most 100")
    tools.add_argument("--cursor", help="continue after the page that printed this cursor")
    trust = commands.add(
        "trust",
        "trust:handle_trust",
        "Let tools of a downstream server run without asking, if the server says that they only read.",
        uses_servers=True,
    )
    trust.add_argument("server", metavar="SERVER", help="name of the server in planwarden.json")
    trust.add_argument(
        "tools",
        nargs="*",
        metavar="TOOL",
        help="only these tools, as planwarden or the server calls them; default: all",
    )
    trust.add_argument("--yes", action="store_true", help="do not ask before writing; needed without a terminal")
    login = commands.add(
        "login",
        "login:handle_login",
        "Log in to a downstream server, in the browser.",
        has_json=False,
        uses_servers=True,
    )
    login.add_argument("server", metavar="SERVER", help="name of the server in planwarden.json")
    login.add_argument("--no-open", action="store_true", help="only print the address")
    login.add_argument("--forget", action="store_true", help="instead delete the stored login")
    doctor = commands.add(
        "doctor", "doctor:handle_doctor", "Check store, settings, model and tools.", uses_servers=True
    )
    doctor.add_argument(
        "--replay", action="store_true", help="also check that this version can continue every stored execution"
    )
    doctor.add_argument("--all", action="store_true", help="with --replay: check the finished ones as well")
    notify = commands.add_group("notify", "test", "The channels that notify people of questions.")
    test = notify.add("test", "notify:handle_test", "Send a test notification now.")
    test.add_argument("--channel", metavar="NAME", help="send it only to this channel; default: to every channel")


def add_schedules(commands: CommandGroup) -> None:
    """Add what changes schedules, and what tries a hook."""
    schedules = commands.add_group(
        "schedule", "add|list|pause|resume|remove|run-now", "Schedules, on which servers and workers start saved plans."
    )
    add = schedules.add("add", "schedules:handle_add", "Start a saved plan at the times of a cron expression.")
    add.add_argument("plan", metavar="PLAN", help="name of the saved plan")
    add.add_argument(
        "--cron",
        required=True,
        metavar="CRON",
        help="minute, hour, day of month, month and day of week, as one argument: '0 9 * * 1'",
    )
    add.add_argument(
        "--timezone", default="UTC", metavar="ZONE", help="IANA time zone, such as Europe/Berlin; default %(default)s"
    )
    add.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an input of the plan; the value is JSON, or text where the plan takes text",
    )
    add.add_argument(
        "--overlap",
        choices=("skip", "queue"),
        default="skip",
        help="what a tick does while the last run is unfinished: start nothing, or start after it; default %(default)s",
    )
    add.add_argument(
        "--missed",
        choices=("latest", "none"),
        default="latest",
        help="what starts after a time without a server: the newest missed tick, or none; default %(default)s",
    )
    add.add_argument(
        "--owner", default=LOCAL, metavar="NAME", help="principal to whom the runs belong; default %(default)s"
    )
    schedules.add("list", "schedules:handle_list", "List schedules, their next times and their last ticks.")
    hooks = commands.add_group("hook", "send", "Requests of other programs that start saved plans: [hooks].")
    text = "Sign a message with the secret of a hook, send it to the running server, and show what it answers."
    send = hooks.add("send", "hooks:handle_send", text)
    send.add_argument("hook", metavar="NAME", help="name of the hook in planwarden.toml")
    send.add_argument("event", metavar="JSON", help="the message, which is the input `event` of the hook's plan")
    send.add_argument(
        "--url",
        default="http://127.0.0.1:8765",
        metavar="URL",
        help="address of the server; default %(default)s",
    )
    for name, text in (
        ("pause", "Start nothing at its ticks until it is resumed."),
        ("resume", "Go on with the next tick; those while it was paused are over."),
        ("remove", "Delete a schedule. Runs that it started go on."),
    ):
        changing = schedules.add(name, f"schedules:handle_{name}", text)
        changing.add_argument("schedule", metavar="SCHEDULE", help="id of the schedule, or the beginning of it")
    now = schedules.add(
        "run-now",
        "schedules:handle_run_now",
        "Start a run now, as a tick would, and ask its questions here.",
        uses_servers=True,
    )
    now.add_argument("schedule", metavar="SCHEDULE", help="id of the schedule, or the beginning of it")
    now.add_argument("--yes", action="store_true", help="as for run")


def add_store(commands: CommandGroup) -> None:
    """Add what copies, moves and empties the store."""
    prune = commands.add(
        "prune", "store:handle_prune", "Say which old finished executions it would delete, ask, and delete them."
    )
    prune.add_argument(
        "--days",
        type=int,
        metavar="N",
        help="delete those that have not changed for N days; default: [retention] days",
    )
    prune.add_argument("--yes", action="store_true", help="do not ask before deleting; needed without a terminal")
    backup = commands.add("backup", "store:handle_backup", "Copy the database while it is in use.")
    backup.add_argument("file", type=Path, metavar="FILE", help="a new file; an existing file is not overwritten")
    move = commands.add(
        "move", "move:handle_move", "Move everything to another store, read it back, and leave this one unusable."
    )
    move.add_argument(
        "--to",
        required=True,
        metavar="URL",
        help="an empty PostgreSQL or a new file, named as for --store; run it again if it was broken off",
    )


def add_guard(commands: CommandGroup) -> None:
    """Add what guards the calls that a host makes itself."""
    guard = commands.add_group(
        "guard", "install|status|uninstall|hook", "Judge and ask about what a host is about to do itself."
    )
    for name, text in (
        ("install", "Show what the host's file gets so that it asks planwarden before each call, ask, and write it."),
        ("uninstall", "Show which lines of planwarden the host's file loses, ask, and write it."),
    ):
        changing = guard.add(name, f"guard:handle_{name}", text)
        changing.add_argument("host", choices=GUARDED, metavar="HOST", help=f"the host: {', '.join(GUARDED)}")
        changing.add_argument(
            "--project", action="store_true", help="in the project of the working directory; default: for this user"
        )
        changing.add_argument("--yes", action="store_true", help="do not ask before writing; needed without a terminal")
    status = guard.add(
        "status",
        "guard:handle_status",
        "Run each hook as its host would, also broken ones, and say what the host does.",
    )
    status.add_argument(
        "--project", action="store_true", help="of the project of the working directory; default: of this user"
    )
    hook = guard.add("hook", "guard:handle_hook", "Answer a host's hook: the event on standard input.", has_json=False)
    hook.add_argument("host", metavar="HOST", help="the host that asks")


def add_tokens(commands: CommandGroup) -> None:
    """Add what changes bearer tokens."""
    tokens = commands.add_group("token", "add|list|revoke", "Bearer tokens for MCP over HTTP: make, list, revoke.")
    add = tokens.add("add", "tokens:handle_add", "Make a token and show it once.")
    add.add_argument("name", metavar="NAME", help="its principal, who owns everything that is done with the token")
    add.add_argument("--days", type=int, metavar="N", help="valid for N days; default: until it is revoked")
    add.add_argument(
        "--role",
        choices=("caller", "approver"),
        default="caller",
        help="caller: for MCP clients, the default; approver: for a person, and MCP refuses it",
    )
    tokens.add("list", "tokens:handle_list", "List tokens, without their secrets.")
    revoke = tokens.add("revoke", "tokens:handle_revoke", "End a token, or all tokens of a name.")
    revoke.add_argument("name", metavar="TOKEN", help="a name, for all of its tokens, or the id of one token")


def add_config(commands: CommandGroup) -> None:
    """Add what prints files for hosts, services and shells."""
    config = commands.add_group("config", "print", "Configuration for MCP hosts.")
    block = config.add("print", "config:handle_print", "Print the block for a host, ready to paste.", has_json=False)
    block.add_argument("client", choices=sorted(HOSTS), metavar="CLIENT", help=f"the host: {', '.join(HOSTS)}")
    service = commands.add_group("service", "print", "Files that keep a server running.")
    printing = service.add(
        "print", "service:handle_print", "Print the file for a server of this home over HTTP.", has_json=False
    )
    printing.add_argument(
        "kind",
        choices=("systemd", "launchd", "docker"),
        metavar="KIND",
        help="systemd: a unit; launchd: an agent of this user; docker: a file for docker compose in a checkout",
    )
    completion = commands.add(
        "completion",
        "completion:handle_completion",
        'Print a script that completes commands and options: `eval "$(planwarden completion bash)"`, the same with '
        "`zsh`, or `planwarden completion fish | source`.",
        has_json=False,
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"the shell: {', '.join(SHELLS)}")

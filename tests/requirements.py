"""What planwarden guarantees, one entry per guarantee: where it comes from, and what must be observable.

A test names the entries it checks with `@requirement("...")`. `tests/project/test_requirements.py` enforces both
directions: no entry without a test, no marker without an entry. A source is a page of `docs/`, a protocol, a port whose
docstring has the laws, or a document of the project's design.
"""

from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Requirement:
    source: str
    behaviour: str


def requirement(*names: str) -> pytest.MarkDecorator:
    """Marks a test as checking the entries `names` of `REQUIREMENTS`."""
    return pytest.mark.requirement(*names)


REQUIREMENTS: dict[str, Requirement] = {
    "rules:match": Requirement(
        "docs/rules",
        "The first rule whose conditions hold decides; text is no number, and what is missing matches nothing.",
    ),
    "rules:doubt": Requirement("docs/rules", "A rule that cannot be evaluated asks, whatever it says."),
    "rules:bounded": Requirement("docs/rules", "Rules look at a call for a bounded time; then it is asked about."),
    "rules:share": Requirement(
        "docs/rules", "A call takes of each budget what it adds, and never gives a budget more."
    ),
    "rules:under": Requirement("docs/rules", "A path lies where its links lead; in doubt nothing is let through."),
    "rules:faults": Requirement("docs/rules", "A rule that is not usable is named with its key, and nothing starts."),
    "rules:calls": Requirement(
        "docs/rules", "On every way to a tool a rule allows, asks or denies; nothing and nobody gets around a denial."
    ),
    "rules:forecast": Requirement("docs/rules", "Forecast and rehearsal say which rule will decide, and what it does."),
    "rules:reference": Requirement(
        "docs/rules", "A second implementation, written from the page and without libraries, decides the same."
    ),
    "rules:commands": Requirement(
        "docs/rules", "Commands list the rules, say which one decides and why, and what they would have done."
    ),
    "rules:offer": Requirement(
        "docs/rules", "After ten approvals that a rule could have given, the page shows that rule; nothing writes it."
    ),
    "rules:policy": Requirement(
        "docs/rules", "Rules are part of the policy, and take nothing away from a critical tool."
    ),
    "guard:once": Requirement(
        "docs/guard", "After a person approved a call of a host, the identical call passes once, within an hour."
    ),
    "guard:person": Requirement("docs/guard", "Nothing worth less than a person releases a call of a host."),
    "guard:no-model": Requirement("docs/guard", "A model that calls the guard itself releases and takes nothing."),
    "guard:fails-closed": Requirement("docs/guard", "What planwarden cannot judge, or does not answer, is blocked."),
    "guard:hosts": Requirement(
        "docs/guard", "Real hosts run what a rule or a person lets pass, and without planwarden they run nothing."
    ),
    "guard:parts": Requirement("docs/guard", "A rule lets a command line pass only if it lets each part pass."),
    "guard:own": Requirement("docs/guard", "planwarden's decisions and files and the hooks of hosts are refused."),
    "guard:files": Requirement("docs/guard", "A host's file keeps everything but planwarden's own lines."),
    "plans:hostile-files": Requirement(
        "docs/reference/plans", "A file that is no plan is named with the reason, costs little, and hides no other one."
    ),
    "plans:one-name": Requirement(
        "docs/reference/plans", "A name stands for one file; the home's wins, also broken, and what it hides is said."
    ),
    "plans:version": Requirement(
        "docs/reference/plans", "Every run of a saved plan records its name and the digest of its content."
    ),
    "plans:exact": Requirement(
        "docs/reference/plans",
        "A run counts as a version of a saved plan while its plan is exactly that one; a retry keeps this, a change "
        "ends it.",
    ),
    "loop:large": Requirement(
        "docs/reference/plans",
        "A loop goes through a list of 10,000 items and 4 MiB out of a large result; each item fits into arguments.",
    ),
    "plans:read-only": Requirement("docs/reference/plans", "Nothing that comes over MCP writes or changes a plan."),
    "hook:starts": Requirement(
        "docs/schedules", "A signed request starts the hook's plan; its body is the input `event`."
    ),
    "hook:once": Requirement("docs/schedules", "A message's id starts one run; its replay is answered with that run."),
    "hook:refused": Requirement(
        "docs/schedules",
        "What is not signed with the hook's secret, in time, gets 401, no word and no run.",
    ),
    "hook:bounded": Requirement("docs/schedules", "A body is at most 256 KiB and arrives in bounded time."),
    "hook:send": Requirement("docs/schedules", "`hook send` signs a message and shows the run, or why there is none."),
    "hook:doctor": Requirement("docs/schedules", "A hook whose plan or secret is missing is named."),
    "service:print": Requirement(
        "docs/operators", "What is printed keeps a server of this home running, and is what `deploy/` holds."
    ),
    "schedule:commands": Requirement(
        "docs/reference/commands",
        "Schedules are added, listed, paused, resumed, removed and run now, as the audit says.",
    ),
    "schedule:times": Requirement(
        "docs/schedules", "A tick is in its zone's time; one that does not exist or exists twice comes once."
    ),
    "schedule:refusals": Requirement(
        "docs/schedules", "What can never tick, or too often, or in no zone, is refused with the reason."
    ),
    "schedule:once": Requirement(
        "docs/schedules",
        "Each tick starts at most one run, whatever processes live or die; a lost start is found again.",
    ),
    "schedule:overlap": Requirement(
        "docs/schedules",
        "While the last run is unfinished a tick is skipped, or waits for its end; which, is recorded.",
    ),
    "schedule:missed": Requirement(
        "docs/schedules", "After a downtime the newest missed tick starts, or none; never more."
    ),
    "schedule:clock": Requirement(
        "docs/schedules", "A clock that jumps loses and doubles no tick beyond what `missed` says."
    ),
    "telemetry:spans": Requirement(
        "docs/observability", "Spans follow from committed events, named by the GenAI conventions, in one tree."
    ),
    "telemetry:private": Requirement(
        "docs/observability", "No argument, result, goal or message leaves in a span unless the operator says so."
    ),
    "telemetry:resume": Requirement(
        "docs/observability",
        "An execution that waited continues in the same trace, in any process, linked to the answer.",
    ),
    "telemetry:context": Requirement(
        "SEP-414", "Trace context is taken from `_meta` of requests and passed in `_meta` of downstream calls."
    ),
    "telemetry:hostile": Requirement(
        "W3C trace context",
        "Malformed or oversized `_meta` counts as absent: no error, no span, no label of its own.",
    ),
    "telemetry:questions": Requirement(
        "docs/observability", "Every end of a question has a span in the execution's trace; open ones are counted."
    ),
    "telemetry:killed": Requirement(
        "docs/observability",
        "After kill -9 the trace continues; a call that was cut off gets its span from the log.",
    ),
    "telemetry:harmless": Requirement(
        "docs/observability", "A collector that fails harms no execution, writes nothing to stdout, delays no end."
    ),
    "telemetry:variables": Requirement("OpenTelemetry", "Every variable that the page names does something."),
    "telemetry:metrics": Requirement("docs/observability", "Each committed event is counted once."),
    "telemetry:handovers": Requirement(
        "docs/observability", "Takeovers and decisions of other processes are counted where the execution goes on."
    ),
    "telemetry:off": Requirement(
        "docs/observability", "Nothing is imported, stored or sent unless an endpoint or a provider was given."
    ),
    "ask_person:answer": Requirement(
        "docs/reference/mcp", "A question without a plan is answered through the channels of any other question."
    ),
    "ask_person:refused": Requirement(
        "docs/reference/mcp",
        "A form that is no schema and texts that are too long are refused before anybody is asked.",
    ),
    "ask_person:once": Requirement(
        "docs/concepts", "A question with a key is asked once, whoever sends it again, also after a restart."
    ),
    "retry:rest": Requirement(
        "docs/concepts", "A retry takes over what the log of the last execution proves, and goes on with the rest."
    ),
    "retry:calls": Requirement(
        "docs/concepts", "Calls that succeeded in a step that did not complete are taken over, of plans and of models."
    ),
    "retry:unknown": Requirement(
        "docs/concepts", "A call that may have happened is asked about before anything runs again, under its old key."
    ),
    "retry:gated": Requirement(
        "docs/concepts",
        "No answer of the old execution releases a call of the new one; the question says what was done.",
    ),
    "retry:refused": Requirement("docs/reference/errors", "What cannot be retried is refused with a code."),
    "retry:once": Requirement(
        "docs/concepts", "Of retries at the same moment one starts; a crash around it loses and doubles nothing."
    ),
    "retry:fork": Requirement(
        "docs/concepts",
        "From a named step on, it and what depends on it runs again, with other inputs or another plan.",
    ),
    "mcp:mistakes": Requirement(
        "docs/reference/mcp",
        "What models get wrong is understood, or refused before anything ran in a sentence that shows the right form.",
    ),
    "mcp:cheap": Requirement(
        "docs/reference/executions", "Answers carry what changed and what comes next; get_execution has the rest."
    ),
    "rehearsal:nothing-done": Requirement(
        "plans", "A rehearsal calls only what reads, asks nobody, changes nothing and claims no success."
    ),
    "rehearsal:record": Requirement(
        "plans", "A rehearsal records each other call with its exact arguments and what it would have needed."
    ),
    "plan:forecast": Requirement(
        "plans", "A forecast runs nothing, and says of each call whom it will ask, or that only the run will know."
    ),
    "console:plan": Requirement(
        "console", "The page of a plan says what it is, how it stands and what each step did; a failure stands first."
    ),
    "console:slider": Requirement("console", "A past state of a plan is shown as past, with nothing to press."),
    "console:other-inputs": Requirement(
        "console, pages; plans, going on",
        "A retry or fork takes other inputs from a form with the old ones filled in; side by side shows what differs.",
    ),
    "console:changed-plan": Requirement(
        "console, pages; plans, fork",
        "A fork takes a changed plan; before it starts, a page says what is kept, what runs again and what stays done.",
    ),
    "console:steer": Requirement(
        "console", "A person stops, retries, forks and rehearses a plan from its page; a form sent twice acts once."
    ),
    "graph:true": Requirement(
        "console", "A graph shows every step with its state in words, and every link that it does not draw is named."
    ),
    "graph:readable": Requirement(
        "console", "A graph of any length scrolls in its own place by keys, and is printed between its rows."
    ),
    "graph:hostile": Requirement("console", "No text of a plan adds anything to a graph but text."),
    "plan:review": Requirement(
        "plans",
        "A plan under review begins nothing before a person approved exactly it; covering is about known calls.",
    ),
    "store:round-trip": Requirement(
        "ports.Store", "Events come back in order, without gaps, equal to what was written."
    ),
    "store:atomic": Requirement("ports.Store", "A call that raised changed nothing: neither log, nor rows, nor lease."),
    "store:version": Requirement(
        "ports.Store", "A writer with an old version gets VersionConflict; nothing is merged."
    ),
    "store:fence": Requirement("ports.Store", "A writer whose lease was taken over gets LeaseLost, always."),
    "store:takeover": Requirement(
        "design, durability", "A lease that ran out, or whose process is dead, can be taken; a valid one cannot."
    ),
    "sqlite:replaced": Requirement(
        "issue", "A process whose database file was replaced or removed writes nothing more, and ends with a sentence."
    ),
    "lease:effect": Requirement(
        "approvals, learned from attacks", "A process that lost an execution sends nothing more and stops its calls."
    ),
    "lease:late-report": Requirement(
        "issue", "A result that comes after the takeover is evidence in the open question, and settles nothing."
    ),
    "lease:living": Requirement(
        "issue", "A living owner is replaced only after a long silence, never because a clock jumped."
    ),
    "store:guard": Requirement(
        "approvals, law 3", "An answer is stored only while the question is pending, in that revision, at that time."
    ),
    "key:once": Requirement("plans, starting once", "What is started with a key is started once, and found with it."),
    "key:processes": Requirement(
        "plans, starting once", "A key holds in every process, at the same moment, and after a crash."
    ),
    "key:conflict": Requirement(
        "plans, starting once", "A key that is sent with another goal or plan is refused and names its execution."
    ),
    "key:owner": Requirement("plans, starting once", "The keys of two owners have nothing to do with each other."),
    "key:valid": Requirement("plans, starting once", "A key has 1 to 200 characters and no control characters."),
    "key:warning": Requirement(
        "plans, starting once", "A plan that is sent again without a key starts, and warns of the unfinished one."
    ),
    "key:cost": Requirement("plans, starting once", "A start without a key costs no further query."),
    "scheduler:fair": Requirement(
        "docs/durability", "What is due at once is worked through without pauses, in turn for each owner."
    ),
    "store:starts": Requirement(
        "ports.Store", "A principal starts one execution with a key, stored with the start, kept as long as it."
    ),
    "store:schedules": Requirement(
        "storage.ports.schedules", "A change of a schedule is stored once for each version, with its row of the audit."
    ),
    "rules:budget": Requirement(
        "docs/rules",
        "Calls that a rule lets pass never come to more than its budget within its window, over all executions and "
        "processes.",
    ),
    "rules:once": Requirement(
        "docs/rules",
        "The effect of a call with a business key happens at most once over all executions; a second one is refused.",
    ),
    "store:grants": Requirement(
        "approvals, standing grants",
        "A use of a grant is counted with the intent it lets through, never more than it says.",
    ),
    "store:audit": Requirement(
        "ports.Store", "The audit grows in the transaction of what it records, chained, and outlives pruning."
    ),
    "store:tasks": Requirement(
        "ports.Store", "Notes about a task are found without reading the audit, at no cost for other executions."
    ),
    "stdio:only-protocol": Requirement(
        "mcp, console", "Only the protocol, or the document of --json, is on standard output, whatever tools print."
    ),
    "shown:right-to-left": Requirement(
        "approvals, what the person sees", "Right-to-left words move no other character of a fact, on any channel."
    ),
    "audit:proves-the-log": Requirement(
        "issue: audit",
        "What the stored logs and rows say about questions, decisions and grants fits the audit, or is named.",
    ),
    "audit:names-the-row": Requirement(
        "issue: audit", "An edited, removed or reordered row of the audit is named by verification."
    ),
    "approval:starter": Requirement(
        "approvals, assurance",
        "Who started an execution for its owner, or added its schedule, is no second person for it.",
    ),
    "approval:critical": Requirement(
        "approvals, risk",
        "A critical call runs only after a signature, or after others than its owner approved it.",
    ),
    "keys:laws": Requirement(
        "storage.keys", "First key by itself, further ones by a known one; counts only grow; revoked keys are dead."
    ),
    "signed:bound": Requirement(
        "approvals, assurance signed", "A signature counts for one revision of one question, at our place, by a person."
    ),
    "signed:nonce": Requirement(
        "approvals, assurance signed", "A challenge is signed once, by the session that asked, within five minutes."
    ),
    "signed:keys": Requirement(
        "approvals, assurance signed", "Only a living key of the person signs, and a session alone does not make one."
    ),
    "signed:page": Requirement(
        "approvals, assurance signed", "A critical call runs once after a signature on its page, edits signed as kept."
    ),
    "signed:place": Requirement(
        "approvals, assurance signed", "Links lead to where keys can be used, and only where every address is ours."
    ),
    "signed:audit": Requirement(
        "approvals, assurance signed", "Signatures are verified again; a decision that says signed has one."
    ),
    "approval:quorum": Requirement("approvals, assurance second", "n of m different people, each counted once."),
    "mcp:bounded-answers": Requirement(
        "issue", "No answer is larger than its limit, and no large request keeps others from being answered."
    ),
    "display:invisible": Requirement(
        "issue", "No character that nobody sees passes: not one of Unicode's whole list, nowhere that text leaves."
    ),
    "http:session-cap": Requirement(
        "issue", "One caller's sessions of the older protocol never keep others out; its oldest idle one is closed."
    ),
    "engine:idle-bytes": Requirement("issue", "What a process keeps of idle executions is bounded by bytes."),
    "mcp:turns": Requirement("issue", "One caller's flood waits in its own line; another's request begins at once."),
    "approval:claimed-rejection": Requirement(
        "approvals", "A rejection that a model claims is shown as the model's, and its reason as nobody's word."
    ),
    "approval:edit-labelled": Requirement(
        "approvals, learned from attacks",
        "A revision says in every channel who edited which arguments and what that was worth.",
    ),
    "approval:vote-stands": Requirement(
        "approvals, learned from attacks", "An edit by less than a person never voids a person's vote."
    ),
    "approval:silence": Requirement(
        "approvals, learned from attacks",
        "Silence approves only when and as the operator said, never by a number or a revision that came later.",
    ),
    "approval:reconcile": Requirement(
        "approvals, learned from attacks",
        '"It did not happen" releases a call, and needs what that call needs at the time of the answer.',
    ),
    "grants:step": Requirement(
        "plans, schedules and triggers; approvals, standing grants",
        "A grant for a saved plan's step covers its own calls in unchanged runs of that version, so many a day.",
    ),
    "approval:grants": Requirement(
        "approvals, standing grants",
        "A grant lets through exactly the pinned tool, the named values, so often, until then.",
    ),
    "approval:stale": Requirement(
        "approvals, law 6", "What changed since it was shown is asked again with the new digest; never run."
    ),
    "approval:code": Requirement(
        "issue, channels",
        "Without a terminal the command line approves only with a one-time code, exactly what was read.",
    ),
    "approval:walk": Requirement(
        "issue, show", "Five ways of a model to approve itself have no effect; a person's edited approval has one."
    ),
    "approval:tampered": Requirement(
        "approvals, must hold", "A stored question that is not what its digest says is never run."
    ),
    "store:one-winner": Requirement("approvals, law 3", "Of racing answers to one question exactly one is stored."),
    "store:thread-busy": Requirement("ports.Store", "At most one unfinished execution per thread."),
    "store:paging": Requirement(
        "ports.Store", "Open questions page oldest first, to people by danger before age; an unknown cursor is refused."
    ),
    "store:deadlines": Requirement(
        "ports.Store", "Deadlines that passed are found, earliest first, by the store's clock."
    ),
    "store:alarms": Requirement(
        "ports.Store", "Alarms and deadlines are found in one order; an alarm that fired is not found again."
    ),
    "alarm:once": Requirement(
        "issue, notifications and time",
        "A reminder or escalation fires once among all processes, and never after the answer; missed ones as one.",
    ),
    "notification:with-its-event": Requirement(
        "issue, notifications and time",
        "A notification is stored in the transaction of its event, or not at all.",
    ),
    "notification:one-claim": Requirement(
        "issue, notifications and time",
        "Of several processes one delivers a notification; a claim that ended says nothing more.",
    ),
    "notification:at-least-once": Requirement(
        "issue, notifications and time",
        "What was not recorded as delivered is sent again, later each time, under the same id and newly signed.",
    ),
    "notification:gives-up": Requirement(
        "issue, notifications and time",
        "Notifications are bounded in number, attempts and time; a lost one is in the audit.",
    ),
    "notification:discreet": Requirement(
        "issue, notifications and time",
        "A notification holds no argument, no text of the agent, no secret; no log, row or representation holds one.",
    ),
    "push:laws": Requirement(
        "storage.browsers", "The laws of `BrowserStore` hold in memory, on SQLite and on PostgreSQL."
    ),
    "push:sealed": Requirement(
        "docs/notifications",
        "Only the chosen browser can read a message; its push service learns no more than that one came.",
    ),
    "push:key": Requirement(
        "docs/notifications", "A home signs what it sends with one key, which is kept as its other secrets are."
    ),
    "push:discreet": Requirement(
        "docs/notifications", "A notice in a browser holds no argument and no text of the agent, and decides nothing."
    ),
    "push:own": Requirement(
        "docs/notifications",
        "Nobody sees, stops or replaces somebody else's browser; it ends with its session, and with its subscription.",
    ),
    "push:hostile-address": Requirement(
        "docs/notifications",
        "A browser's word for its push service leads to public https only, to no redirect, and costs bounded time.",
    ),
    "push:page": Requirement(
        "docs/notifications",
        "The page offers notifications, says what keeps this browser from them, and works without script.",
    ),
    "notification:never-in-the-way": Requirement(
        "issue, notifications and time",
        "A slow or dead receiver delays neither an execution nor the end of the process.",
    ),
    "scale:roles": Requirement("scale", "A front runs nothing; workers share what waits, each as much as it may."),
    "scale:takeover": Requirement(
        "scale", "What a killed or stopped worker left is taken over; nothing happens twice; one that wakes works on."
    ),
    "scale:tools": Requirement("scale", "Work goes to a process that has its tools, and waits until there is one."),
    "scale:policy": Requirement("scale", "A process with an older policy ends what it has begun, and begins nothing."),
    "scale:upgrade": Requirement(
        "scale", "Two versions share a store; the older one refuses and leaves what it cannot read; nothing is lost."
    ),
    "store:orphans": Requirement("design, durability", "Running executions without a valid owner are found."),
    "store:prune": Requirement("issue, runner and store", "Pruning deletes finished, old executions and nothing else."),
    "artifact:atomic": Requirement(
        "decisions, 18", "An artifact is stored with the event that mentions it, or neither; pruning deletes both."
    ),
    "artifact:whole": Requirement(
        "design, law 8", "A reference leads into the whole of a result that the log holds a stand-in of."
    ),
    "artifact:damage": Requirement("design, durability", "A damaged artifact is a StoreError, never a wrong value."),
    "artifact:crash": Requirement(
        "design, durability", "Killed between a large effect and its commit: outcome unknown, and nothing left behind."
    ),
    "stream:no-record": Requirement(
        "issue, cut stream", "Text of a stream that broke off is shown as progress at most; it is in no record."
    ),
    "provider:run-goal": Requirement(
        "issue, show", "A goal is planned and its tools really run with the wire format of every provider."
    ),
    "provider:bad-settings": Requirement(
        "issue, bad input", "A wrong setting or a provider's refusal is one sentence, no traceback, never the key."
    ),
    "store:reopen": Requirement("design, durability", "What was acknowledged is there after the file is opened again."),
    "store:cancelled-caller": Requirement("design, durability", "A cancelled caller leaves no transaction open."),
    "store:group-commit": Requirement(
        "design, durability", "Waiting writes share one transaction; a bad one does not harm the others."
    ),
    "replay:decisions": Requirement(
        "plans, going on", "Replay folds a log and refuses the first recorded decision that `decide` would not take."
    ),
    "replay:store": Requirement(
        "plans, going on", "`doctor --replay` streams over the logs of any store and names what does not replay."
    ),
    "replay:upgrade": Requirement(
        "plans, going on", "A migration that leaves a log that does not replay is rolled back; nothing is written."
    ),
    "replay:real": Requirement("plans, going on", "Whatever the engine wrote replays, also after crashes."),
    "show:at": Requirement(
        "plans, going on", "`show --at` is the fold of the log up to that event, and offers nothing to act on."
    ),
    "patience:waits": Requirement(
        "plans, going on",
        "A prompt whose provider is out of reach waits 1 min, doubling to 30 min, for modelPatienceS.",
    ),
    "patience:asked": Requirement(
        "RFC 9110", "A wait is at least as long as the provider asks with Retry-After, and at most six hours for that."
    ),
    "patience:at-once": Requirement(
        "plans, going on", "A wrong key or an unknown model fails at once; 429, 5xx and broken connections wait."
    ),
    "patience:durable": Requirement(
        "plans, going on",
        "No process owns an execution that waits for a provider; any process wakes it, also after a restart.",
    ),
    "patience:restart": Requirement(
        "plans, going on",
        "An execution that gave its provider up is incomplete; execute_plan with its thread continues it.",
    ),
    "patience:said": Requirement(
        "plans, going on", "View, text and terminal say until when it waits, which attempt follows, and the last error."
    ),
    "store:listed": Requirement(
        "console, plans",
        "Executions are listed by activity, in pages, and found by words and filters, without their logs.",
    ),
    "store:model": Requirement("style, 34", "Random use of every store agrees with a model made of dictionaries."),
    "sqlite:modes": Requirement("design, durability", "Files are 0600 in a folder of 0700 before SQLite opens them."),
    "sqlite:refused-untouched": Requirement(
        "design, durability", "A newer schema, somebody else's file, a network file system: refused, no byte changed."
    ),
    "sqlite:damage": Requirement(
        "design, durability", "A damaged file is a StoreError, never a wrong answer, and is not rewritten."
    ),
    "sqlite:gap": Requirement("design, durability", "A log with a missing transaction is a StoreError."),
    "sqlite:full": Requirement("design, durability", "A full disk is a StoreError; nothing stored before is lost."),
    "sqlite:read-only": Requirement("design, durability", "A read-only file or folder is a StoreError."),
    "sqlite:backup": Requirement("issue, runner and store", "A backup taken while others write is consistent."),
    "sqlite:migrate": Requirement("design, durability", "An empty file is brought to the newest schema, once."),
    "sqlite:migrate-rows": Requirement(
        "design, durability", "Rows of an earlier schema are read, and their executions continue."
    ),
    "move:whole": Requirement("issue 15, move", "Logs, digests and the head of the audit are the same after a move."),
    "move:empty-target": Requirement("issue 15, move", "A target that holds anything is refused and left as it was."),
    "move:marked": Requirement("issue 15, move", "The source says where it went, and serves nobody afterwards."),
    "move:alone": Requirement("issue 15, move", "Nothing moves while a process uses the source or the target."),
    "move:crash": Requirement(
        "issue 15, move", "Killed at any moment, never both stores can be used, and the next run finishes the move."
    ),
    "state:total": Requirement(
        "style, 34", "apply never reaches an undeclared state; an illegal event changes nothing."
    ),
    "state:fold": Requirement(
        "design, laws", "The fold of the stored log is the state that was kept while it was written."
    ),
    "codec:round-trip": Requirement(
        "style, 34", "Every event decodes to what was encoded; what does not fit is StoreError."
    ),
    "codec:readable": Requirement("ports.Store", "What could not be read back is refused, and nothing is written."),
    "decorator:words": Requirement(
        "docs/reference/python", "A word of a tool's definition is checked where it is written, with file and line."
    ),
    "decorator:on-resume": Requirement(
        "docs/reference/python", "on_resume gets the Decision; a mistake in it is named and loses no answer."
    ),
    "codec:golden": Requirement("style, 34", "Every released stored form decodes, and encodes to itself."),
    "canonical:one-text": Requirement(
        "agent.canonical", "Equal values have one text; its size is known without error."
    ),
    "plan:ends": Requirement("design, laws 1 and 4", "Any plan ends, or is suspended with an open question."),
    "plan:order": Requirement(
        "design, laws", "No step runs before what it depends on; nothing runs after a rejected confirmation step."
    ),
    "crash:every-call": Requirement(
        "style, 35", "A crash at any store call: no effect twice, nothing acknowledged lost, same outcome, never stuck."
    ),
    "crash:control": Requirement("issue, tests", "The same check fails on an engine with a planted bug."),
    "crash:lost-answer": Requirement(
        "scale", "A commit whose answer was lost is found again; its calls run once, and nobody is asked about them."
    ),
    "crash:sigkill": Requirement(
        "issue, figures", "kill -9 again and again: no effect twice, none acknowledged lost, none stuck."
    ),
    "crash:one-word": Requirement(
        "approvals, law 3", "An answer releases one call; a call that was lost needs a new answer."
    ),
    "crash:disk-told": Requirement(
        "docs/durability", "Who waits gets storage_error while the disk is full; the execution goes on afterwards."
    ),
    "crash:disk": Requirement(
        "design, durability", "When the disk is full an outcome is kept, and stored when there is space again."
    ),
    "race:decision": Requirement(
        "approvals, must hold",
        "Approve, reject and time-out from 16 tasks in 2 processes: one winner, one effect at most.",
    ),
    "engine:two-processes": Requirement(
        "design, durability",
        "An answer or a cancellation recorded by another process reaches the owner while it works.",
    ),
    "engine:fenced": Requirement("design, durability", "A result of an owner that was taken over is not recorded."),
    "engine:shutdown": Requirement(
        "design, durability", "A call cut off by shutdown is asked about, never repeated by itself."
    ),
    "engine:inflight": Requirement("design, laws", "A call whose result waits to be stored does not count as lost."),
    "engine:foreign-values": Requirement(
        "issue, bad input", "What cannot be stored is refused, or recorded as a failure; no execution is stuck over it."
    ),
    "engine:one-bad-row": Requirement(
        "design, durability", "One damaged execution does not stop the scheduler for others."
    ),
    "access:tokens": Requirement(
        "issue, several owners", "A token is kept as a hash, and ends when its days, its owner or its role say so."
    ),
    "access:owners": Requirement(
        "issue, several owners", "What belongs to another principal looks and costs as if it did not exist."
    ),
    "access:sessions": Requirement("issue, several owners", "A session serves only the principal that opened it."),
    "access:refused": Requirement(
        "issue, several owners", "Without a valid token nothing is served, and all refusals look alike."
    ),
    "access:closes": Requirement(
        "docs/security", "Servers without tokens close after the first one, everywhere, and streams end with theirs."
    ),
    "access:logged": Requirement(
        "docs/schedules", "A server's log says which tokens and requests of hooks it refused, and no secret."
    ),
    "access:brake": Requirement("issue, several owners", "Guessing tokens is slowed down, in bounded memory."),
    "access:oauth-person": Requirement(
        "approvals, assurance", "An OAuth login is no person when its client drives the execution, or is not known."
    ),
    "network:names": Requirement(
        "issue, tests", "Requests with a foreign Host or Origin are refused before anything else is looked at."
    ),
    "network:bind": Requirement(
        "issue, several owners", "Off loopback the server starts only with tokens or an issuer, and a list of names."
    ),
    "network:trust": Requirement(
        "approvals, resume_execution", "trust_caller shows a banner, and needs a second setting for other machines."
    ),
    "oauth:verified": Requirement(
        "issue, several owners", "Only the issuer's own, current tokens for this audience count, as ISSUER#SUBJECT."
    ),
    "oauth:keys": Requirement(
        "issue, several owners", "The issuer's keys are fetched within limits, kept, and given up when they end."
    ),
    "oauth:metadata": Requirement("RFC 9728", "A client without a token learns who issues them, and for what."),
    "resume:table": Requirement(
        "approvals, resume_execution", "Every row of the table of resume_execution, in both eras of the protocol."
    ),
    "resume:link": Requirement(
        "approvals, must hold", "An address that was opened decides nothing; the store does. It holds no secret."
    ),
    "resume:brake": Requirement(
        "approvals, resume_execution", "Asking, and answering without a decision, is slowed down after 5 in 10 minutes."
    ),
    "resume:state": Requirement(
        "approvals, must hold", "Forged, moved, foreign, expired or replayed request state never has a second effect."
    ),
    "app:nonce": Requirement(
        "issue, MCP App", "app_decide decides with a nonce from _meta only: one revision, one principal, one decision."
    ),
    "app:plan": Requirement(
        "issue, the console, 6",
        "The view shows the plan and its state, live, bounded, and as text; the model gets none of it.",
    ),
    "app:assurance": Requirement("issue, MCP App", "The app never decides above `client`."),
    "app:listing": Requirement("issue, MCP App", "Clients that draw no apps see neither the app nor its tool."),
    "app:view": Requirement(
        "issue, MCP App", "The view shows facts first, as text, loads nothing, and never focuses approve."
    ),
    "forms:whole": Requirement(
        "approvals, learned from attacks",
        "Nothing is decidable where a value was shortened and cannot be opened, in no channel.",
    ),
    "forms:brief": Requirement(
        "approvals, what the person sees",
        "A form shows the risk and all facts whole on its first three lines, at eighty columns, or there is no form.",
    ),
    "hosts:person": Requirement(
        "issue, real clients",
        "A person answers on the screen of a real host, and the plan continues with that answer recorded as theirs.",
    ),
    "downstream:config": Requirement(
        "wire, commands", "A host's mcpServers block works as it is; what cannot be used is named with its place."
    ),
    "downstream:names": Requirement(
        "wire, commands", "Names are <server>_<tool>, usable, stable, different; no server takes another's or ours."
    ),
    "downstream:risk": Requirement(
        "approvals, risk of a call", "Hints of a server only raise risks unless the operator trusts it."
    ),
    "downstream:words": Requirement(
        "approvals, what the person sees", "Words of a server are data: one line, escaped, never followed."
    ),
    "downstream:results": Requirement(
        "design, two-tier tools", "Every kind of content is kept within limits; text is never parsed."
    ),
    "downstream:calls": Requirement(
        "design, durability",
        "What was sent and has no answer is unknown when it may have had an effect, and only then.",
    ),
    "downstream:adopted": Requirement(
        "issue, soak", "A process that continues an execution first lists the servers of the tools that it needs."
    ),
    "downstream:link": Requirement(
        "design, two-tier tools", "A server starts when it is needed, is started again, and ends with the process."
    ),
    "downstream:alone": Requirement(
        "design, two-tier tools",
        "A server that is down or hostile makes only its own tools unavailable, with a reason.",
    ),
    "downstream:bounded": Requirement(
        "mcp, the SDK", "No line, listing, storm or stream of a server takes the memory or the loop of the process."
    ),
    "downstream:schema-cost": Requirement(
        "mcp, the SDK", "A server's schema or pattern cannot stall the process or make it fetch anything."
    ),
    "references:bounded": Requirement(
        "ours", "References cannot multiply what a call gets beyond its limit; nothing is copied to find that out."
    ),
    "server:stalls": Requirement(
        "ours", "A server notices when its event loop stands still, logs it, and doctor tells of it."
    ),
    "confirm:certain": Requirement(
        "docs/reference/plans", "A person is not asked to confirm a later call that certainly fails."
    ),
    "references:never": Requirement("docs/reference/plans", "What no run could resolve is refused before one."),
    "references:text": Requirement(
        "console, what a model sees",
        "A binding reads JSON in text where it says so; where it leads nowhere it says why.",
    ),
    "plans:inputs": Requirement(
        "docs/reference/plans", "A run gets inputs that fit the plan's schema, with defaults, or nothing happens."
    ),
    "plans:default": Requirement("docs/reference/plans", "A default stands for a value that is not there."),
    "plans:text": Requirement("docs/reference/plans", "A template puts values into text; the engine copies them."),
    "conditions:judged": Requirement("docs/reference/plans", "A step whose condition does not hold is skipped."),
    "conditions:dependents": Requirement(
        "docs/reference/plans", "Steps go on after one whose condition did not hold, unless they need its value."
    ),
    "conditions:closed": Requirement(
        "docs/reference/plans", "What a condition cannot judge does not match, and the step says why."
    ),
    "conditions:faults": Requirement("docs/reference/plans", "A condition that cannot be judged is refused at once."),
    "loops:each": Requirement("docs/reference/plans", "A loop is proven by the calls of every item."),
    "loops:failure": Requirement("docs/reference/plans", "A failed item stops the others, or leaves a gap."),
    "loops:batch": Requirement(
        "docs/reference/plans", "Calls of a loop that need a person are one question; each row releases its call once."
    ),
    "loops:calls": Requirement(
        "docs/reference/plans",
        "A call of a loop takes the result of an earlier call of its item, and all rows are one question.",
    ),
    "thread:effects": Requirement(
        "docs/reference/executions", "Whoever is asked about a call that ran in the thread before is told first."
    ),
    "done:honest": Requirement(
        "docs/reference/executions",
        "An execution is called proven only as far as its steps promised calls and made them.",
    ),
    "edits:told": Requirement(
        "docs/reference/executions", "Arguments that a person changed are in the next answer, from what to what."
    ),
    "confirms:loop": Requirement(
        "docs/reference/plans", "A confirmation covers the calls of a loop whose items are known when it asks."
    ),
    "plan:promises": Requirement(
        "docs/reference/plans", "A plan that seems to promise what it does not is accepted with a warning."
    ),
    "loops:pages": Requirement(
        "docs/reference/executions",
        "The results of all items of a loop are read by pages over MCP, commands and Python.",
    ),
    "loops:faults": Requirement("docs/reference/plans", "A loop that cannot work is refused or fails."),
    "attempts:wait": Requirement(
        "docs/reference/plans", "A call that failed by its tool's own word is made again after a durable wait."
    ),
    "attempts:harmless": Requirement(
        "docs/reference/plans", "An effect is tried again only if its tool said that nothing happened."
    ),
    "attempts:covered": Requirement("docs/reference/plans", "An approval says and covers how often a call is tried."),
    "plan:literals": Requirement(
        "console, what a model sees",
        "Literal arguments are checked when the plan is accepted, around what is bound, in bounded work.",
    ),
    "plan:placeholders": Requirement(
        "console, what a model sees",
        "A placeholder is a fault where a model wrote it; where a caller did, a warning, and said first in questions.",
    ),
    "thread:bindings": Requirement(
        "console, settled", "A later execution takes completed results of its thread, fixed when its plan is accepted."
    ),
    "failure:done": Requirement(
        "console, what a model sees", "A failure says what is completed and how a later plan takes its results."
    ),
    "references:process": Requirement(
        "ours", "A process of its own parses a very large result for references, and returns only the parts."
    ),
    "server:frames": Requirement(
        "ours", "A client's message is bounded in bytes and values before it is parsed, and refused under its id."
    ),
    "results:slices": Requirement(
        "ours", "Encoding a large result never keeps the event loop's thread busy for more than 100 ms."
    ),
    "downstream:schema-work": Requirement(
        "ours", "The work of checking a value against a schema is bounded before it is done, whoever sent either."
    ),
    "downstream:private": Requirement(
        "approvals, law 9", "A child process gets a few safe variables and the configured ones, no keys of ours."
    ),
    "downstream:questions": Requirement(
        "issue: downstream questions",
        "What a server asks is asked of a person, in its name, bounded; the answer goes back; no effect happens twice.",
    ),
    "downstream:login": Requirement(
        "issue: conformance of the client",
        "Only a person logs in, by a command. The token is refreshed, goes to its server only, and stays in its file.",
    ),
    "delegate:durable": Requirement(
        "issue: delegate_to_agent",
        "A goal is handed over once; its handle outlives the process; the engine waits for it and cancels it too.",
    ),
    "delegate:questions": Requirement(
        "issue: delegate_to_agent",
        "What the agent asks is asked here in its name, answered once wherever; our approval is a caller's word there.",
    ),
    "delegate:covered": Requirement(
        "approvals, learned from attacks",
        "All that a remote question releases is shown here as facts and digested, or it cannot be approved here.",
    ),
    "delegate:bounded": Requirement(
        "issue: delegate_to_agent", "Three levels, no cycle, and no more than what is left of the budget."
    ),
    "downstream:pins": Requirement(
        "approvals, law 6",
        "A tool that changed since the plan, question or decision is asked about with the difference.",
    ),
    "catalogue:dynamic": Requirement(
        "ports.Toolbox", "A group of tools is replaced at once or not at all, and definitions() changes exactly then."
    ),
    "yes:worth": Requirement(
        "approvals", "--yes without a terminal is worth a client's answer, never a person's; the log says which it was."
    ),
    "call:gated": Requirement(
        "design, durability", "A single call needs approval and is recorded like a call of a plan."
    ),
    "inbox:code-once": Requirement("approvals, inbox", "A code opens one session, once; a used one is refused."),
    "inbox:code-expires": Requirement("approvals, inbox", "A code expires within minutes."),
    "inbox:lockout": Requirement(
        "approvals, must hold", "Guessed codes are refused, and after a few no typed code counts."
    ),
    "inbox:hashed": Requirement("approvals, inbox", "Codes and sessions are stored as hashes only."),
    "inbox:shared": Requirement("approvals, inbox", "Sessions hold in every process of the home."),
    "inbox:session-needed": Requirement("approvals, inbox", "Without a session nothing is shown and nothing taken."),
    "inbox:session-ends": Requirement("approvals, inbox", "Sessions expire and can be ended, one or all."),
    "inbox:passphrase": Requirement("approvals, inbox", "A configured passphrase is asked for besides the code."),
    "secrets:shared": Requirement(
        "issue 15", "The processes of one home share its secrets, and those that start at once agree on each."
    ),
    "secrets:sealed": Requirement(
        "issue 15", "Who reads the database learns no secret, and a row that was changed or moved is refused."
    ),
    "secrets:key": Requirement(
        "issue 15", "With PostgreSQL no process serves without the store's key, and it says so in one sentence."
    ),
    "inbox:audited": Requirement(
        "approvals, inbox", "The audit records codes, refusals and sessions, without secrets."
    ),
    "inbox:cross-site": Requirement(
        "approvals, must hold", "A change that another site asked for, or an `Origin: null`, is refused with 403."
    ),
    "inbox:get-changes-nothing": Requirement("approvals, must hold", "Looking at an address decides nothing: 403."),
    "inbox:csrf": Requirement("approvals, must hold", "A form without this session's token is refused with 403."),
    "inbox:headers": Requirement(
        "approvals, what the person sees", "Every answer has the strict policy; no page is framed or holds script."
    ),
    "inbox:hosts": Requirement("approvals, inbox", "Only the inbox's own names are answered."),
    "inbox:bounded": Requirement("issue, bad input", "Bodies and forms are bounded."),
    "inbox:cookie": Requirement("approvals, what the person sees", "HttpOnly, SameSite=Strict, Secure over https."),
    "inbox:facts-first": Requirement(
        "approvals, what the person sees", "Tool, arguments, origins and risk from the stored bytes, then the agent."
    ),
    "inbox:hostile": Requirement("approvals, must hold", "Hostile text stays text, escaped and capped, on every page."),
    "inbox:all-threads": Requirement("issue, inbox", "Open questions to people of all threads and owners are listed."),
    "inbox:unknown": Requirement("issue, bad input", "Absent ids and ids that are not for people look the same."),
    "inbox:plans": Requirement(
        "console, plans", "Every run is listed in words, with its state and progress, and found by words and filters."
    ),
    "terminal:executions": Requirement("console, plans", "The terminal lists executions as the page of plans does."),
    "inbox:unreachable": Requirement(
        "console, pages", "A page that cannot be refreshed says from when it is, and what to run."
    ),
    "inbox:paged": Requirement("issue, bad input", "A page takes a bounded number of store calls, whatever waits."),
    "inbox:cheap": Requirement(
        "issue, inbox", "A look at the list costs what it shows, however long the arguments; nothing new costs nothing."
    ),
    "inbox:live": Requirement("issue, inbox", "New questions and decisions appear by themselves."),
    "inbox:decides-once": Requirement("approvals, law 3", "A decision on a page is recorded once, with who and what."),
    "inbox:edited-seen": Requirement(
        "approvals, law 5", "Edited arguments are decided after their difference was shown."
    ),
    "inbox:stale": Requirement(
        "issue, bad input", "A revised question is shown as it is now; a decided one says by whom and when."
    ),
    "inbox:together": Requirement("issue, inbox", "Several are decided from a table of every call, each by itself."),
    "inbox:worth": Requirement(
        "approvals, assurance", "A person who does not suffice sees so; a quorum gathers on the page."
    ),
    "inbox:grants": Requirement("approvals, risk", "Grants are made from a question, shown, and ended."),
    "inbox:step-grants": Requirement(
        "console, pages; approvals, standing grants",
        "A step of a saved plan is allowed from its question, in words, once, and only what can be and was shown.",
    ),
    "inbox:keep": Requirement(
        "console, pages; plans, saved plans",
        "A person keeps the plan of a finished run from its page: the file as shown, once, and over no other.",
    ),
    "inbox:any-process": Requirement("issue, inbox", "A decision counts in whichever process of the home it is made."),
    "inbox:one-place": Requirement(
        "console, pages", "A home has one inbox at one port; when its process ends, the next one serves it."
    ),
    "inbox:opens-when-needed": Requirement("issue, inbox", "Nothing listens and no browser opens before it is needed."),
    "inbox:terminal-only": Requirement("approvals, assurance", "A code goes to a terminal, never into a pipe or MCP."),
    "inbox:no-script": Requirement("issue, bad input", "Everything can be decided without script."),
    "inbox:keyboard": Requirement("issue, inbox", "Keys move the focus; approve is never what Enter presses unasked."),
    "inbox:times": Requirement(
        "console, pages", "Times are in the reader's zone; without script they stand in UTC, which they say."
    ),
    "inbox:screen-reader": Requirement(
        "console, pages", "Landmarks, headings, voices, states and buttons have names, and news are said as they come."
    ),
    "inbox:accessible": Requirement("console, pages", "axe-core has no finding on any page, in any look."),
    "terminal:rows": Requirement(
        "docs/approvals",
        "At a terminal rows are shown by page, chosen and edited; those not shown are asked about once more.",
    ),
    "inbox:lineage": Requirement(
        "console, truth",
        "Pages name the saved plan with its version, and executions that go on from each other lead to each other.",
    ),
    "inbox:rows": Requirement(
        "docs/approvals",
        "Rows of one question are left out and edited on its page; what was not opened is asked about once more.",
    ),
    "inbox:layout": Requirement(
        "console, pages", "What matters most comes first: danger before age, fields before facts, rows as a table."
    ),
    "decisions:said": Requirement(
        "console, truth", "Wherever a step is shown, it says who decided about each call, and what it left out."
    ),
    "inbox:outcome": Requirement("console, truth", "After a decision the page says what became of it, truthfully."),
    "inbox:seen-first": Requirement("console, truth", "On a phone what is covered is seen before Approve is active."),
    "voices:apart": Requirement("console, truth", "No sentence of one voice stands in the place of another, anywhere."),
    "saved:listed": Requirement(
        "console, saved plans",
        "Saved plans are listed with origin and version, files that cannot be used with the reason.",
    ),
    "saved:started": Requirement(
        "console, saved plans",
        "A form made from the inputs starts the plan or its rehearsal, recorded with who did it.",
    ),
    "saved:faults": Requirement(
        "console, saved plans", "What a plan does not take is shown at its field, and nothing starts."
    ),
    "saved:once": Requirement(
        "console, saved plans", "A form that is sent twice starts one run and adds one schedule."
    ),
    "saved:as-shown": Requirement(
        "console, saved plans", "The version that was shown is started; after a change the page is shown again."
    ),
    "saved:forecast": Requirement("console, saved plans", "Beside the form stands which calls will ask whom and why."),
    "saved:schedules": Requirement(
        "console, saved plans", "Schedules are added, paused, resumed, run and removed; the page says what that did."
    ),
    "inbox:phone": Requirement("issue, inbox", "Pages fit a phone, light and dark, with labels and enough contrast."),
    "tasks:lifecycle": Requirement(
        "SEP-2663", "A call becomes a task at once; its statuses, times and end are those of the execution."
    ),
    "tasks:caller": Requirement(
        "design, three kinds of model", "What would ask the calling model is an ordinary result, never a task."
    ),
    "tasks:input": Requirement(
        "approvals, assurance",
        "A question answered through a task is worth client; what needs more is not decided there.",
    ),
    "tasks:link": Requirement(
        "approvals, assurance",
        "What no form can decide is an address in the task. Opening or declining it decides nothing; it counts once.",
    ),
    "tasks:waiting": Requirement(
        "issue, tasks extension",
        "A task that waits for a person its client cannot ask ends with the ordinary result; nobody polls without end.",
    ),
    "tasks:replay": Requirement(
        "SEP-2663", "A key means one question and one answer; repeated, late and superseded answers change nothing."
    ),
    "tasks:durable": Requirement("design, durability", "Restarts, lost clients and other processes lose no task."),
    "tasks:cancel": Requirement("SEP-2663", "Cancelling and completing race to one end, which never changes."),
    "tasks:over": Requirement(
        "SEP-2663",
        "A task that was reported as over stays over: with its execution continued, cancelled or pruned, by any clock.",
    ),
    "tasks:owner": Requirement(
        "SEP-2663", "Unknown and foreign tasks are the same error, and nobody is notified of them."
    ),
    "tasks:undeclared": Requirement(
        "SEP-2663", "Clients and revisions without the extension get ordinary results and the specified errors."
    ),
    "tasks:notified": Requirement("SEP-2663", "A listener receives each task as tasks/get returns it, up to its end."),
    "clients:lying": Requirement(
        "issue, bad input",
        "What a client declares and what it sends need not agree; neither decides what nobody was shown.",
    ),
    "clients:malformed": Requirement(
        "issue, bad input", "Task ids and answers of any other type are the specified error, and change nothing."
    ),
    "clients:revisions": Requirement(
        "issue, bad input", "Revisions and methods that are not spoken are the specified errors, which say what is."
    ),
    "clients:hurrying": Requirement(
        "issue, bad input", "Polling as fast as the wire allows is answered, and does nothing twice."
    ),
    "clients:vanishing": Requirement(
        "issue, bad input", "A client that drops in the middle loses nothing, and what it began has one effect."
    ),
    "clients:repeating": Requirement(
        "issue, bad input",
        "One question answered through several channels, processes and replays at once has one effect.",
    ),
    "subscriptions:updates": Requirement(
        "issue, resources", "Subscribers of both eras are notified of every change of executions and open questions."
    ),
    "subscriptions:suspension": Requirement(
        "issue, resources",
        "A subscriber of one question is notified of every change of it: answered, revised, expired, withdrawn.",
    ),
    "subscriptions:tools": Requirement(
        "issue, resources",
        "A subscriber of the tools for plans is notified when others are listed or cannot be called.",
    ),
    "subscriptions:bounded": Requirement(
        "issue, resources", "A slow listener's queue is no longer than its subscription; it misses no last state."
    ),
    "subscriptions:owner": Requirement("issue, resources", "Subscribers are notified only about their own principal."),
    "lists:hints": Requirement(
        "issue, resources",
        "Lists carry cache hints where the revision has them, drawings, and whom their entries are for.",
    ),
    "resources:suspension": Requirement(
        "design, MCP surface",
        "An open question can be read by its owner; absent, answered and foreign ones look alike.",
    ),
    "confirm:exact": Requirement(
        "docs/security", "A confirmation covers the calls it showed, once each; a model cannot revise what it rests on."
    ),
    "prompt:every-word-reviewed": Requirement(
        "docs/concepts", "Every word of the fixed prompts is in a file that a reviewer sees change."
    ),
    "prompt:planning-size": Requirement("docs/concepts", "Planning over 200 tools takes at most 3,000 tokens."),
    "caller:already-answered": Requirement(
        "docs/reference/mcp",
        "Another answer to a closed question is refused and names the open one; it never vanishes.",
    ),
    "caller:told-again": Requirement(
        "docs/reference/mcp", "What is asked about a step for a second time is told whole: instructions, schema, form."
    ),
    "caller:last-attempt": Requirement("docs/reference/mcp", "The last attempt says that it is the last."),
    "caller:revision-acknowledged": Requirement("docs/reference/mcp", "Who revises a plan is told what was changed."),
    "caller:resolved-arguments": Requirement(
        "docs/reference/mcp", "A call whose arguments came from a binding or an edit is shown with them."
    ),
    "caller:no-idle-synthesis": Requirement(
        "docs/concepts",
        "The text of a last reasoning step that rests on all others is the output; no other is asked for.",
    ),
    "caller:ways-at-once": Requirement(
        "docs/reference/mcp", "A client that cannot ask its person gets the person's ways in the first answer."
    ),
    "caller:results-known": Requirement(
        "docs/reference/mcp",
        "A tool shows what it returns, by its schema or as it was seen, and whether it asks a person.",
    ),
    "prompts:no-approval": Requirement(
        "approvals, law 1", "No prompt tells a model to approve; questions are listed with where the person decides."
    ),
    "prompts:owner": Requirement("issue, prompts", "Prompts and completions show the caller's own things only."),
    "start:light": Requirement(
        "issue, figures to reach",
        "What needs no store is answered first; opening begins after that, once.",
    ),
    "start:failure": Requirement(
        "issue, bad input",
        "A wrong setting is refused before anything is served; a store that fails to open is the answer to each call.",
    ),
    "bundle:starts": Requirement("issue, bundle", "The packed bundle starts from scratch as its manifest says."),
    "bundle:generated": Requirement("issue, bundle", "What the manifest lists is what the server offers."),
    "registry:entry": Requirement(
        "issue, registry", "server.json fits the registry's schema, and names and versions agree with the package."
    ),
    "fuzz:entrances": Requirement(
        "docs/durability",
        "Random and broken input at any entrance ends in a known code and a sentence, and stops nothing else.",
    ),
    "names:one-class": Requirement("issue, words", "A public class name is unique in the package."),
    "names:rooms": Requirement(
        "issue, rooms", "Every package says what lives there; its `__init__.py` holds nothing else."
    ),
    "docs:reference": Requirement(
        "docs/reference", "What the code decides is written from it, and stands in some page."
    ),
    "docs:changes": Requirement(
        "docs/living-with-changes", "What was suspended survives changes of everything around it, or says what to do."
    ),
}

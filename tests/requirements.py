"""What planwarden guarantees, one entry per guarantee: what must be observable.

A test names the entries it checks with `@requirement("...")`. `tests/project/test_tree.py` enforces both
directions: no entry without a test, no marker without an entry.
"""

import pytest


def requirement(*names: str) -> pytest.MarkDecorator:
    """Mark a test as checking the entries `names` of `REQUIREMENTS`."""
    return pytest.mark.requirement(*names)


REQUIREMENTS: dict[str, str] = {
    "rules:match": (
        "The first rule whose conditions hold decides; text is no number, and what is missing matches nothing."
    ),
    "rules:doubt": "A rule that cannot be evaluated asks, whatever it says.",
    "rules:bounded": "Rules look at a call for a bounded time; then it is asked about.",
    "rules:share": "A call takes of each budget what it adds, and never gives a budget more.",
    "rules:under": "A path lies where its links lead; in doubt nothing is let through.",
    "rules:faults": "A rule that is not usable is named with its key, and nothing starts.",
    "rules:calls": "On every way to a tool a rule allows, asks or denies; nothing and nobody gets around a denial.",
    "rules:forecast": "Forecast and rehearsal say which rule will decide, and what it does.",
    "rules:reference": "A second implementation, written from the page and without libraries, decides the same.",
    "rules:commands": "Commands list the rules, say which one decides and why, and what they would have done.",
    "rules:offer": "After ten approvals that a rule could have given, the page shows that rule; nothing writes it.",
    "rules:policy": "Rules are part of the policy, and take nothing away from a critical tool.",
    "guard:once": "After a person approved a call of a host, the identical call passes once, within an hour.",
    "guard:person": "Nothing worth less than a person releases a call of a host.",
    "guard:no-model": "A model that calls the guard itself releases and takes nothing.",
    "guard:fails-closed": "What planwarden cannot judge, or does not answer, is blocked.",
    "guard:hosts": "Real hosts run what a rule or a person lets pass, and without planwarden they run nothing.",
    "guard:parts": "A rule lets a command line pass only if it lets each part pass.",
    "guard:own": "planwarden's decisions and files and the hooks of hosts are refused.",
    "done:corpus": "Sessions that owe a promised call are never taken as done, and hardly any other as not done.",
    "done:hosts": "Real hosts send a model back that says it is done without a promised call, and never for ever.",
    "done:ends": "A stop is refused at most as often as promises say, then a person is asked, once.",
    "done:waiver": "A person waives promises for one session, with a reason that receipt and audit say.",
    "done:trusted": "A folder's promises count as a person trusted them; a later change is said, and changes nothing.",
    "guard:files": "A host's file keeps everything but planwarden's own lines.",
    "gate:waits": "A gated call waits as its host can, runs once, and an answer without a decision decides nothing.",
    "gate:killed": "A gate that is killed at any commit of a call loses and repeats nothing, and its result arrives.",
    "gate:renews": "An identical call gives the open question its time again, and voids nobody's approval.",
    "gate:people": "Calls through a gate are listed with server, tool, arguments, host, outcome and result.",
    "gate:hostile": "A gate lives on whatever its server or its host sends, within its memory, and names the server.",
    "gate:install": "The servers of a host go behind the gate and back, and its file keeps everything else.",
    "plans:hostile-files": "A file that is no plan is named with the reason, costs little, and hides no other one.",
    "plans:one-name": "A name stands for one file; the home's wins, also broken, and what it hides is said.",
    "plans:version": "Every run of a saved plan records its name and the digest of its content.",
    "plans:exact": (
        "A run counts as a version of a saved plan while its plan is exactly that one; a retry keeps this, a change "
        "ends it."
    ),
    "loop:large": (
        "A loop goes through a list of 10,000 items and 4 MiB out of a large result; each item fits into arguments."
    ),
    "plans:skills": "A saved plan is served as a skill whose digests, sizes and front matter are those of its files.",
    "plans:read-only": "Nothing that comes over MCP writes or changes a plan.",
    "hook:starts": "A signed request starts the hook's plan; its body is the input `event`.",
    "hook:once": "A message's id starts one run; its replay is answered with that run.",
    "hook:refused": "What is not signed with the hook's secret, in time, gets 401, no word and no run.",
    "hook:bounded": "A body is at most 256 KiB and arrives in bounded time.",
    "hook:send": "`hook send` signs a message and shows the run, or why there is none.",
    "hook:doctor": "A hook whose plan or secret is missing is named.",
    "service:print": "What is printed keeps a server of this home running, and is what `deploy/` holds.",
    "schedule:commands": "Schedules are added, listed, paused, resumed, removed and run now, as the audit says.",
    "schedule:times": "A tick is in its zone's time; one that does not exist or exists twice comes once.",
    "schedule:refusals": "What can never tick, or too often, or in no zone, is refused with the reason.",
    "schedule:once": "Each tick starts at most one run, whatever processes live or die; a lost start is found again.",
    "schedule:overlap": "While the last run is unfinished a tick is skipped, or waits for its end; which, is recorded.",
    "schedule:missed": "After a downtime the newest missed tick starts, or none; never more.",
    "schedule:clock": "A clock that jumps loses and doubles no tick beyond what `missed` says.",
    "telemetry:spans": "Spans follow from committed events, named by the GenAI conventions, in one tree.",
    "telemetry:private": "No argument, result, goal or message leaves in a span unless the operator says so.",
    "telemetry:resume": "An execution that waited or was cut off continues in the same trace, in any process.",
    "telemetry:context": "Trace context is taken from `_meta` of requests and passed in `_meta` of downstream calls.",
    "telemetry:hostile": "Malformed or oversized trace context in `_meta` counts as absent: no error, no long line.",
    "telemetry:questions": "Each question is counted when it is asked, and when it ends, by how it ended.",
    "telemetry:harmless": "A collector that fails harms no execution, writes nothing to stdout, delays no end.",
    "telemetry:variables": "Every variable that the page names does something.",
    "telemetry:metrics": "Each committed event is counted once.",
    "telemetry:handovers": "Takeovers and decisions of other processes are counted where the execution goes on.",
    "telemetry:off": "Nothing is imported, stored or sent unless an endpoint or a provider was given.",
    "ask_person:answer": "A question without a plan is answered through the channels of any other question.",
    "ask_person:refused": "A form that is no schema and texts that are too long are refused before anybody is asked.",
    "ask_person:once": "A question with a key is asked once, whoever sends it again, also after a restart.",
    "retry:rest": "A retry takes over what the log of the last execution proves, and goes on with the rest.",
    "retry:calls": "Calls that succeeded in a step that did not complete are taken over, of plans and of models.",
    "retry:unknown": "A call that may have happened is asked about before anything runs again, under its old key.",
    "retry:gated": "No answer of the old execution releases a call of the new one; the question says what was done.",
    "retry:refused": "What cannot be retried is refused with a code.",
    "retry:once": "Of retries at the same moment one starts; a crash around it loses and doubles nothing.",
    "retry:fork": "From a named step on, it and what depends on it runs again, with other inputs or another plan.",
    "mcp:mistakes": (
        "What models get wrong is understood, or refused before anything ran in a sentence that shows the right form."
    ),
    "mcp:cheap": "Answers carry what changed and what comes next; get_execution has the rest.",
    "rehearsal:nothing-done": "A rehearsal calls only what reads, asks nobody, changes nothing and claims no success.",
    "rehearsal:record": "A rehearsal records each other call with its exact arguments and what it would have needed.",
    "plan:forecast": "A forecast runs nothing, and says of each call whom it will ask, or that only the run will know.",
    "console:plan": "The page of a plan says what it is, how it stands and what each step did; a failure stands first.",
    "console:other-inputs": "A retry or fork takes other inputs from a form with the old ones filled in.",
    "console:steer": "A person stops, retries, forks and rehearses a plan from its page; a form sent twice acts once.",
    "graph:true": "A graph shows every step with its state in words, and every link that it does not draw is named.",
    "graph:readable": "A graph of any length scrolls in its own place by keys, and is printed between its rows.",
    "graph:hostile": "No text of a plan adds anything to a graph but text.",
    "plan:review": (
        "A plan under review begins nothing before a person approved exactly it; covering is about known calls."
    ),
    "store:round-trip": "Events come back in order, without gaps, equal to what was written.",
    "store:atomic": "A call that raised changed nothing: neither log, nor rows, nor lease.",
    "store:version": "A writer with an old version gets VersionConflict; nothing is merged.",
    "store:fence": "A writer whose lease was taken over gets LeaseLost, always.",
    "store:takeover": "A lease that ran out, or whose process is dead, can be taken; a valid one cannot.",
    "sqlite:replaced": (
        "A process whose database file was replaced or removed writes nothing more, and ends with a sentence."
    ),
    "lease:effect": "A process that lost an execution sends nothing more and stops its calls.",
    "lease:late-report": (
        "A result that comes after the takeover is evidence in the open question, and settles nothing."
    ),
    "lease:living": "A living owner is replaced only after a long silence, never because a clock jumped.",
    "store:guard": "An answer is stored only while the question is pending, in that revision, at that time.",
    "key:once": "What is started with a key is started once, and found with it.",
    "key:processes": "A key holds in every process, at the same moment, and after a crash.",
    "key:conflict": "A key that is sent with another goal or plan is refused and names its execution.",
    "key:owner": "The keys of two owners have nothing to do with each other.",
    "key:valid": "A key has 1 to 200 characters and no control characters.",
    "key:warning": "A plan that is sent again without a key starts, and warns of the unfinished one.",
    "scheduler:fair": "What is due at once is worked through without pauses, in turn for each owner.",
    "store:starts": "A principal starts one execution with a key, stored with the start, kept as long as it.",
    "store:schedules": "A change of a schedule is stored once for each version, with its row of the audit.",
    "rules:budget": (
        "Calls that a rule lets pass never come to more than its budget within its window, over all executions and "
        "processes."
    ),
    "rules:once": (
        "The effect of a call with a business key happens at most once over all executions; a second one is refused."
    ),
    "store:grants": "A use of a grant is counted with the intent it lets through, never more than it says.",
    "store:audit": "The audit grows in the transaction of what it records, chained, and outlives pruning.",
    "store:tasks": "Notes about a task are found without reading the audit, at no cost for other executions.",
    "stdio:only-protocol": "Only the protocol, or the document of --json, is on standard output, whatever tools print.",
    "shown:right-to-left": "Right-to-left words move no other character of a fact, on any channel.",
    "audit:proves-the-log": (
        "What the stored logs and rows say about questions, decisions and grants fits the audit, or is named."
    ),
    "audit:names-the-row": "An edited, removed or reordered row of the audit is named by verification.",
    "approval:starter": "Who started an execution for its owner, or added its schedule, is no second person for it.",
    "approval:critical": "A critical call runs only after a signature, or after others than its owner approved it.",
    "keys:laws": "First key by itself, further ones by a known one; counts only grow; revoked keys are dead.",
    "signed:bound": "A signature counts for one revision of one question, at our place, by a person.",
    "signed:nonce": "A challenge is signed once, by the session that asked, within five minutes.",
    "signed:keys": "Only a living key of the person signs, and a session alone does not make one.",
    "signed:page": "A critical call runs once after a signature on its page, edits signed as kept.",
    "signed:place": "Links lead to where keys can be used, and only where every address is ours.",
    "signed:audit": "Signatures are verified again; a decision that says signed has one.",
    "approval:quorum": "n of m different people, each counted once.",
    "mcp:bounded-answers": "No answer is larger than its limit, and no large request keeps others from being answered.",
    "display:invisible": (
        "No character that nobody sees passes: not one of Unicode's whole list, nowhere that text leaves."
    ),
    "http:session-cap": (
        "One caller's sessions of the older protocol never keep others out; its oldest idle one is closed."
    ),
    "engine:idle-bytes": "What a process keeps of idle executions is bounded by bytes.",
    "mcp:turns": "One caller's flood waits in its own line; another's request begins at once.",
    "approval:claimed-rejection": (
        "A rejection that a model claims is shown as the model's, and its reason as nobody's word."
    ),
    "approval:edit-labelled": "A revision says in every channel who edited which arguments and what that was worth.",
    "approval:vote-stands": "An edit by less than a person never voids a person's vote.",
    "approval:silence": (
        "Silence approves only when and as the operator said, never by a number or a revision that came later."
    ),
    "approval:authorize": "One judgement says whether a call runs, asks or is denied, for every way to allow it.",
    "approval:reconcile": (
        '"It did not happen" releases a call, and needs what that call needs at the time of the answer.'
    ),
    "grants:step": (
        "A grant for a saved plan's step covers its own calls in unchanged runs of that version, so many a day."
    ),
    "approval:grants": "A grant lets through exactly the pinned tool, the named values, so often, until then.",
    "approval:stale": "What changed since it was shown is asked again with the new digest; never run.",
    "approval:code": "Without a terminal the command line approves only with a one-time code, exactly what was read.",
    "approval:walk": "Five ways of a model to approve itself have no effect; a person's edited approval has one.",
    "approval:tampered": "A stored question that is not what its digest says is never run.",
    "store:one-winner": "Of racing answers to one question exactly one is stored.",
    "store:thread-busy": "At most one unfinished execution per thread.",
    "store:paging": "Open questions page oldest first, to people by danger before age; an unknown cursor is refused.",
    "store:deadlines": "Deadlines that passed are found, earliest first, by the store's clock.",
    "store:alarms": "Alarms and deadlines are found in one order; an alarm that fired is not found again.",
    "alarm:once": (
        "A reminder or escalation fires once among all processes, and never after the answer; missed ones as one."
    ),
    "notification:with-its-event": "A notification is stored in the transaction of its event, or not at all.",
    "notification:one-claim": "Of several processes one delivers a notification; a claim that ended says nothing more.",
    "notification:at-least-once": (
        "What was not recorded as delivered is sent again, later each time, under the same id and newly signed."
    ),
    "notification:gives-up": "Notifications are bounded in number, attempts and time; a lost one is in the audit.",
    "notification:discreet": (
        "A notification holds no argument, no text of the agent, no secret; no log, row or representation holds one."
    ),
    "notification:page": (
        "The open page offers notifications, says what keeps this browser from them, and works without script."
    ),
    "notification:never-in-the-way": "A slow or dead receiver delays neither an execution nor the end of the process.",
    "scale:roles": "A front runs nothing; workers share what waits, each as much as it may.",
    "scale:takeover": (
        "What a killed or stopped worker left is taken over; nothing happens twice; one that wakes works on."
    ),
    "scale:tools": "Work goes to a process that has its tools, and waits until there is one.",
    "scale:policy": "A process with an older policy ends what it has begun, and begins nothing.",
    "scale:upgrade": (
        "Two versions share a store; the older one refuses and leaves what it cannot read; nothing is lost."
    ),
    "store:orphans": "Running executions without a valid owner are found.",
    "store:prune": "Pruning deletes finished, old executions and nothing else.",
    "artifact:atomic": "An artifact is stored with the event that mentions it, or neither; pruning deletes both.",
    "artifact:whole": "A reference leads into the whole of a result that the log holds a stand-in of.",
    "artifact:damage": "A damaged artifact is a StoreError, never a wrong value.",
    "stream:no-record": "Text of a stream that broke off is shown as progress at most; it is in no record.",
    "provider:run-goal": "A goal is planned and its tools really run with the wire format of every provider.",
    "provider:bad-settings": "A wrong setting or a provider's refusal is one sentence, no traceback, never the key.",
    "store:reopen": "What was acknowledged is there after the file is opened again.",
    "store:cancelled-caller": "A cancelled caller leaves no transaction open.",
    "store:group-commit": "A write that fails harms none of those that are committed with it.",
    "replay:decisions": "Replay folds a log and refuses the first recorded decision that `decide` would not take.",
    "replay:store": "`doctor --replay` streams over the logs of any store and names what does not replay.",
    "replay:upgrade": "A migration that leaves a log that does not replay is rolled back; nothing is written.",
    "replay:real": "Whatever the engine wrote replays, also after crashes.",
    "show:at": "`show --at` is the fold of the log up to that event, and offers nothing to act on.",
    "patience:waits": "A prompt whose provider is out of reach waits 1 min, doubling to 30 min, for modelPatienceS.",
    "patience:asked": (
        "A wait is at least as long as the provider asks with Retry-After, and at most six hours for that."
    ),
    "patience:at-once": "A wrong key or an unknown model fails at once; 429, 5xx and broken connections wait.",
    "patience:durable": (
        "No process owns an execution that waits for a provider; any process wakes it, also after a restart."
    ),
    "patience:restart": (
        "An execution that gave its provider up is incomplete; execute_plan with its thread continues it."
    ),
    "patience:said": "View, text and terminal say until when it waits, which attempt follows, and the last error.",
    "store:listed": "Executions are listed by activity, in pages, and found by words and filters, without their logs.",
    "store:model": "Random use of every store agrees with a model made of dictionaries.",
    "sqlite:modes": "Files are 0600 in a folder of 0700 before SQLite opens them.",
    "sqlite:refused-untouched": (
        "A newer schema, somebody else's file, a network file system: refused, no byte changed."
    ),
    "sqlite:damage": "A damaged file is a StoreError, never a wrong answer, and is not rewritten.",
    "sqlite:gap": "A log with a missing transaction is a StoreError.",
    "sqlite:full": "A full disk is a StoreError; nothing stored before is lost.",
    "sqlite:read-only": "A read-only file or folder is a StoreError.",
    "sqlite:backup": "A backup taken while others write is consistent.",
    "sqlite:migrate": "An empty file is brought to the newest schema, once.",
    "sqlite:migrate-rows": "Rows of an earlier schema are read, and their executions continue.",
    "move:whole": "Logs, digests and the head of the audit are the same after a move.",
    "move:empty-target": "A target that holds anything is refused and left as it was.",
    "move:marked": "The source says where it went, and serves nobody afterwards.",
    "move:alone": "Nothing moves while a process uses the source or the target.",
    "move:crash": "Killed at any moment, never both stores can be used, and the next run does the whole move.",
    "state:total": "apply never reaches an undeclared state; an illegal event changes nothing.",
    "state:fold": "The fold of the stored log is the state that was kept while it was written.",
    "codec:round-trip": "Every event decodes to what was encoded; what does not fit is StoreError.",
    "codec:readable": "What could not be read back is refused, and nothing is written.",
    "decorator:words": "A word of a tool's definition is checked where it is written, with file and line.",
    "decorator:on-resume": "on_resume gets the Decision; a mistake in it is named and loses no answer.",
    "codec:golden": "Every released stored form decodes, and encodes to itself.",
    "canonical:one-text": "Equal values have one text; its size is known without error.",
    "plan:ends": "Any plan ends, or is suspended with an open question.",
    "plan:order": "No step runs before what it depends on; nothing runs after a rejected confirmation step.",
    "crash:every-call": (
        "A crash at any store call: no effect twice, nothing acknowledged lost, same outcome, never stuck."
    ),
    "crash:lost-answer": (
        "A commit whose answer was lost is found again; its calls run once, and nobody is asked about them."
    ),
    "crash:sigkill": "kill -9 again and again: no effect twice, none acknowledged lost, none stuck.",
    "crash:one-word": "An answer releases one call; a call that was lost needs a new answer.",
    "crash:disk-told": "Who waits gets storage_error while the disk is full; the execution goes on afterwards.",
    "crash:disk": "When the disk is full an outcome is kept, and stored when there is space again.",
    "race:decision": "Approve, reject and time-out from 16 tasks in 2 processes: one winner, one effect at most.",
    "engine:two-processes": "An answer or a cancellation recorded by another process reaches the owner while it works.",
    "engine:fenced": "A result of an owner that was taken over is not recorded.",
    "engine:shutdown": "A call cut off by shutdown is asked about, never repeated by itself.",
    "engine:inflight": "A call whose result waits to be stored does not count as lost.",
    "engine:foreign-values": (
        "What cannot be stored is refused, or recorded as a failure; no execution is stuck over it."
    ),
    "engine:one-bad-row": "One damaged execution does not stop the scheduler for others.",
    "access:tokens": "A token is kept as a hash, and ends when its days, its owner or its role say so.",
    "access:owners": "What belongs to another principal looks and costs as if it did not exist.",
    "access:sessions": "A session serves only the principal that opened it.",
    "access:refused": "Without a valid token nothing is served, and all refusals look alike.",
    "access:closes": "Servers without tokens close after the first one, everywhere, and streams end with theirs.",
    "access:logged": "A server's log says which tokens and requests of hooks it refused, and no secret.",
    "access:brake": "Guessing tokens is slowed down, in bounded memory.",
    "access:oauth-person": "An OAuth login is no person when its client drives the execution, or is not known.",
    "network:names": "Requests with a foreign Host or Origin are refused before anything else is looked at.",
    "network:bind": "Off loopback the server starts only with tokens or an issuer, and a list of names.",
    "network:trust": "trust_caller shows a banner, and needs a second setting for other machines.",
    "oauth:verified": "Only the issuer's own, current tokens for this audience count, as ISSUER#SUBJECT.",
    "oauth:keys": "The issuer's keys are fetched within limits, kept, and given up when they end.",
    "oauth:metadata": "A client without a token learns who issues them, and for what.",
    "resume:table": "Every row of the table of resume_execution, in both eras of the protocol.",
    "resume:link": "An address that was opened decides nothing; the store does. It holds no secret.",
    "resume:brake": "Asking, and answering without a decision, is slowed down after 5 in 10 minutes.",
    "resume:state": "Forged, moved, foreign, expired or replayed request state never has a second effect.",
    "app:nonce": "app_decide decides with a nonce from _meta only: one revision, one principal, one decision.",
    "app:plan": "The view shows the plan and its state, live, bounded, and as text; the model gets none of it.",
    "app:assurance": "The app never decides above `client`.",
    "app:listing": "Clients that draw no apps see neither the app nor its tool.",
    "app:view": "The view shows facts first, as text, loads nothing, and never focuses approve.",
    "forms:whole": "Nothing is decidable where a value was shortened and cannot be opened, in no channel.",
    "forms:round-trip": "The text of a value in a field is read as the same value, in every form.",
    "forms:brief": (
        "A form shows the risk and all facts whole on its first three lines, at eighty columns, or there is no form."
    ),
    "hosts:person": (
        "A person answers on the screen of a real host, and the plan continues with that answer recorded as theirs."
    ),
    "downstream:config": "A host's mcpServers block works as it is; what cannot be used is named with its place.",
    "downstream:names": "Names are <server>_<tool>, usable, stable, different; no server takes another's or ours.",
    "downstream:risk": "Hints of a server only raise risks unless the operator trusts it.",
    "downstream:words": "Words of a server are data: one line, escaped, never followed.",
    "downstream:results": "Every kind of content is kept within limits; text is never parsed.",
    "downstream:calls": "What was sent and has no answer is unknown when it may have had an effect, and only then.",
    "downstream:adopted": "A process that continues an execution first lists the servers of the tools that it needs.",
    "downstream:link": "A server starts when it is needed, is started again, and ends with the process.",
    "downstream:alone": "A server that is down or hostile makes only its own tools unavailable, with a reason.",
    "downstream:bounded": "No line, listing, storm or stream of a server takes the memory or the loop of the process.",
    "downstream:schema-cost": "A server's schema or pattern cannot stall the process or make it fetch anything.",
    "references:bounded": (
        "References cannot multiply what a call gets beyond its limit; nothing is copied to find that out."
    ),
    "server:stalls": "A server notices when its event loop stands still, logs it, and doctor tells of it.",
    "confirm:certain": "A person is not asked to confirm a later call that certainly fails.",
    "references:never": "What no run could resolve is refused before one.",
    "references:text": "A binding reads JSON in text where it says so; where it leads nowhere it says why.",
    "plans:inputs": "A run gets inputs that fit the plan's schema, with defaults, or nothing happens.",
    "plans:default": "A default stands for a value that is not there.",
    "plans:text": "A template puts values into text; the engine copies them.",
    "conditions:judged": "A step whose condition does not hold is skipped.",
    "conditions:dependents": "Steps go on after one whose condition did not hold, unless they need its value.",
    "conditions:closed": "What a condition cannot judge does not match, and the step says why.",
    "conditions:faults": "A condition that cannot be judged is refused at once.",
    "loops:each": "A loop is proven by the calls of every item.",
    "loops:failure": "A failed item stops the others, or leaves a gap.",
    "loops:batch": "Calls of a loop that need a person are one question; each row releases its call once.",
    "loops:calls": "A call of a loop takes the result of an earlier call of its item, and all rows are one question.",
    "thread:effects": "Whoever is asked about a call that ran in the thread before is told first.",
    "done:honest": "An execution is called proven only as far as its steps promised calls and made them.",
    "edits:told": "Arguments that a person changed are in the next answer, from what to what.",
    "confirms:loop": "A confirmation covers the calls of a loop whose items are known when it asks.",
    "plan:promises": "A plan that seems to promise what it does not is accepted with a warning.",
    "loops:pages": "The results of all items of a loop are read by pages over MCP, commands and Python.",
    "loops:faults": "A loop that cannot work is refused or fails.",
    "attempts:wait": "A call that failed by its tool's own word is made again after a durable wait.",
    "attempts:harmless": "An effect is tried again only if its tool said that nothing happened.",
    "attempts:covered": "An approval says and covers how often a call is tried.",
    "plan:literals": "Literal arguments are checked when the plan is accepted, around what is bound, in bounded work.",
    "plan:placeholders": (
        "A placeholder is a fault where a model wrote it; where a caller did, a warning, and said first in questions."
    ),
    "thread:bindings": "A later execution takes completed results of its thread, fixed when its plan is accepted.",
    "failure:done": "A failure says what is completed and how a later plan takes its results.",
    "references:process": "A process of its own parses a very large result for references, and returns only the parts.",
    "server:frames": "A client's message is bounded in bytes and values before it is parsed, and refused under its id.",
    "results:encoding": "Encoding a large result never keeps the event loop's thread busy for more than 100 ms.",
    "downstream:schema-work": (
        "The work of checking a value against a schema is bounded before it is done, whoever sent either."
    ),
    "downstream:private": "A child process gets a few safe variables and the configured ones, no keys of ours.",
    "downstream:questions": (
        "What a server asks is asked of a person, in its name, bounded; the answer goes back; no effect happens twice."
    ),
    "downstream:login": (
        "Only a person logs in, by a command. The token is refreshed, goes to its server only, and stays in its file."
    ),
    "delegate:durable": (
        "A goal is handed over once; its handle outlives the process; the engine waits for it and cancels it too."
    ),
    "delegate:questions": (
        "What the agent asks is asked here in its name, answered once wherever; our approval is a caller's word there."
    ),
    "delegate:covered": (
        "All that a remote question releases is shown here as facts and digested, or it cannot be approved here."
    ),
    "delegate:bounded": "Three levels, no cycle, and no more than what is left of the budget.",
    "downstream:pins": "A tool that changed since the plan, question or decision is asked about with the difference.",
    "catalogue:dynamic": "A group of tools is replaced at once or not at all, and definitions() changes exactly then.",
    "yes:worth": "--yes without a terminal is worth a client's answer, never a person's; the log says which it was.",
    "call:gated": "A single call needs approval and is recorded like a call of a plan.",
    "inbox:code-once": "A code opens one session, once; a used one is refused.",
    "inbox:code-expires": "A code expires within minutes.",
    "inbox:lockout": "Guessed codes are refused, and after a few no typed code counts.",
    "inbox:hashed": "Codes and sessions are stored as hashes only.",
    "inbox:shared": "Sessions hold in every process of the home.",
    "inbox:session-needed": "Without a session nothing is shown and nothing taken.",
    "inbox:session-ends": "Sessions expire and can be ended, one or all.",
    "inbox:passphrase": "A configured passphrase is asked for besides the code.",
    "secrets:shared": "The processes of one home share its secrets, and those that start at once agree on each.",
    "secrets:sealed": "Who reads the database learns no secret, and a row that was changed or moved is refused.",
    "secrets:key": "With PostgreSQL no process serves without the store's key, and it says so in one sentence.",
    "inbox:audited": "The audit records codes, refusals and sessions, without secrets.",
    "inbox:cross-site": "A change that another site asked for, or an `Origin: null`, is refused with 403.",
    "inbox:get-changes-nothing": "Looking at an address decides nothing: 403.",
    "inbox:csrf": "A form without this session's token is refused with 403.",
    "inbox:headers": "Every answer has the strict policy; no page is framed or holds script.",
    "inbox:hosts": "Only the inbox's own names are answered.",
    "inbox:bounded": "Bodies and forms are bounded.",
    "inbox:cookie": "HttpOnly, SameSite=Strict, Secure over https.",
    "inbox:facts-first": "Tool, arguments, origins and risk from the stored bytes, then the agent.",
    "inbox:hostile": "Hostile text stays text, escaped and capped, on every page.",
    "inbox:all-threads": "Open questions to people of all threads and owners are listed.",
    "inbox:unknown": "Absent ids and ids that are not for people look the same.",
    "inbox:plans": "Every run is listed in words, with its state and progress, and found by words and filters.",
    "terminal:executions": "The terminal lists executions as the page of plans does.",
    "inbox:unreachable": "A page that cannot be refreshed says from when it is, and what to run.",
    "inbox:paged": "A page takes a bounded number of store calls, whatever waits.",
    "inbox:live": "New questions and decisions appear by themselves.",
    "inbox:decides-once": "A decision on a page is recorded once, with who and what.",
    "inbox:edited-seen": "Edited arguments are decided after their difference was shown.",
    "inbox:stale": "A revised question is shown as it is now; a decided one says by whom and when.",
    "inbox:together": "Several are decided from a table of every call, each by itself.",
    "inbox:worth": "A person who does not suffice sees so; a quorum gathers on the page.",
    "inbox:grants": "Grants are made from a question, shown, and ended.",
    "inbox:step-grants": (
        "A step of a saved plan is allowed from its question, in words, once, and only what can be and was shown."
    ),
    "inbox:keep": (
        "A person keeps the plan of a finished run from its page: the file as shown, once, and over no other."
    ),
    "inbox:any-process": "A decision counts in whichever process of the home it is made.",
    "inbox:one-place": "A home has one inbox at one port; when its process ends, the next one serves it.",
    "inbox:opens-when-needed": "Nothing listens and no browser opens before it is needed.",
    "inbox:terminal-only": "A code goes to a terminal, never into a pipe or MCP.",
    "inbox:no-script": "Everything can be decided without script.",
    "inbox:keyboard": "Keys move the focus; approve is never what Enter presses unasked.",
    "inbox:times": "Times are in the reader's zone; without script they stand in UTC, which they say.",
    "inbox:screen-reader": (
        "Landmarks, headings, voices, states and buttons have names, and news are said as they come."
    ),
    "inbox:accessible": "axe-core has no finding on any page, in any look.",
    "terminal:rows": (
        "At a terminal rows are shown by page, chosen and edited; those not shown are asked about once more."
    ),
    "inbox:lineage": (
        "Pages name the saved plan with its version, and executions that go on from each other lead to each other."
    ),
    "inbox:rows": (
        "Rows of one question are left out and edited on its page; what was not opened is asked about once more."
    ),
    "inbox:layout": "What matters most comes first: danger before age, fields before facts, rows as a table.",
    "decisions:said": "Wherever a step is shown, it says who decided about each call, and what it left out.",
    "inbox:outcome": "After a decision the page says what became of it, truthfully.",
    "inbox:seen-first": "On a phone what is covered is seen before Approve is active.",
    "voices:apart": "No sentence of one voice stands in the place of another, anywhere.",
    "saved:listed": "Saved plans are listed with origin and version, files that cannot be used with the reason.",
    "saved:started": "A form made from the inputs starts the plan or its rehearsal, recorded with who did it.",
    "saved:faults": "What a plan does not take is shown at its field, and nothing starts.",
    "saved:once": "A form that is sent twice starts one run and adds one schedule.",
    "saved:as-shown": "The version that was shown is started; after a change the page is shown again.",
    "saved:forecast": "Beside the form stands which calls will ask whom and why.",
    "saved:schedules": "Schedules are added, paused, resumed, run and removed; the page says what that did.",
    "inbox:phone": "Pages fit a phone, light and dark, with labels and enough contrast.",
    "tasks:lifecycle": "A call becomes a task at once; its statuses, times and end are those of the execution.",
    "tasks:caller": "What would ask the calling model is an ordinary result, never a task.",
    "tasks:input": "A question answered through a task is worth client; what needs more is not decided there.",
    "tasks:link": (
        "What no form can decide is an address in the task. Opening or declining it decides nothing; it counts once."
    ),
    "tasks:waiting": (
        "A task that waits for a person its client cannot ask ends with the ordinary result; nobody polls without end."
    ),
    "tasks:replay": "A key means one question and one answer; repeated, late and superseded answers change nothing.",
    "tasks:durable": "Restarts, lost clients and other processes lose no task.",
    "tasks:cancel": "Cancelling and completing race to one end, which never changes.",
    "tasks:over": (
        "A task that was reported as over stays over: with its execution continued, cancelled or pruned, by any clock."
    ),
    "tasks:owner": "Unknown and foreign tasks are the same error, and nobody is notified of them.",
    "tasks:undeclared": "Clients and revisions without the extension get ordinary results and the specified errors.",
    "tasks:notified": "A listener receives each task as tasks/get returns it, up to its end.",
    "clients:lying": "What a client declares and what it sends need not agree; neither decides what nobody was shown.",
    "clients:malformed": "Task ids and answers of any other type are the specified error, and change nothing.",
    "clients:revisions": "Revisions and methods that are not spoken are the specified errors, which say what is.",
    "clients:vanishing": "A client that drops in the middle loses nothing, and what it began has one effect.",
    "clients:repeating": (
        "One question answered through several channels, processes and replays at once has one effect."
    ),
    "subscriptions:updates": "Subscribers of both eras are notified of every change of executions and open questions.",
    "subscriptions:suspension": (
        "A subscriber of one question is notified of every change of it: answered, revised, expired, withdrawn."
    ),
    "subscriptions:tools": (
        "A subscriber of the tools for plans is notified when others are listed or cannot be called."
    ),
    "subscriptions:bounded": "A slow listener's queue is no longer than its subscription; it misses no last state.",
    "subscriptions:owner": "Subscribers are notified only about their own principal.",
    "lists:hints": "Lists carry cache hints where the revision has them, drawings, and whom their entries are for.",
    "resources:suspension": "An open question can be read by its owner; absent, answered and foreign ones look alike.",
    "confirm:exact": "A confirmation covers the calls it showed, once each; a model cannot revise what it rests on.",
    "prompt:every-word-reviewed": "Every word of the fixed prompts is in a file that a reviewer sees change.",
    "prompt:planning-size": "Planning over 200 tools takes at most 3,000 tokens.",
    "caller:already-answered": (
        "Another answer to a closed question is refused and names the open one; it never vanishes."
    ),
    "caller:told-again": "What is asked about a step for a second time is told whole: instructions, schema, form.",
    "caller:last-attempt": "The last attempt says that it is the last.",
    "caller:revision-acknowledged": "Who revises a plan is told what was changed.",
    "caller:resolved-arguments": "A call whose arguments came from a binding or an edit is shown with them.",
    "caller:no-idle-synthesis": (
        "The text of a last reasoning step that rests on all others is the output; no other is asked for."
    ),
    "caller:ways-at-once": "A client that cannot ask its person gets the person's ways in the first answer.",
    "caller:results-known": (
        "A tool shows what it returns, by its schema or as it was seen, and whether it asks a person."
    ),
    "prompts:no-approval": "No prompt tells a model to approve; questions are listed with where the person decides.",
    "prompts:owner": "Prompts and completions show the caller's own things only.",
    "start:light": "What needs no store is answered first; opening begins after that, once.",
    "start:failure": (
        "A wrong setting is refused before anything is served; a store that fails to open is the answer to each call."
    ),
    "bundle:starts": "The packed bundle starts from scratch as its manifest says.",
    "bundle:generated": "What the manifest lists is what the server offers.",
    "registry:entry": "server.json fits the registry's schema, and names and versions agree with the package.",
    "fuzz:entrances": (
        "Random and broken input at any entrance ends in a known code and a sentence, and stops nothing else."
    ),
    "names:one-class": "A public class name is unique in the package.",
    "names:rooms": "Every package says what lives there; its `__init__.py` holds nothing else.",
    "docs:reference": "What the code decides is written from it, and stands in some page.",
    "docs:changes": "What was suspended survives changes of everything around it, or says what to do.",
}

SPECIFIED: dict[str, tuple[str, ...]] = {
    "OpenTelemetry": ("telemetry:variables",),
    "RFC 9110": ("patience:asked",),
    "RFC 9728": ("oauth:metadata",),
    "SEP-2663": (
        "tasks:lifecycle",
        "tasks:replay",
        "tasks:cancel",
        "tasks:over",
        "tasks:owner",
        "tasks:undeclared",
        "tasks:notified",
    ),
    "SEP-414": ("telemetry:context",),
    "W3C trace context": ("telemetry:hostile",),
}
"""Which of them a specification demands."""

"""Whether an agent that says "done" is done: sessions of hosts, with what each still owes at its end.

`sessions.jsonl` has one session a line. Its label `owed` was decided before the code was tried. Calls: `edit` and
`read` with a path, `run` with a command line and its exit code (null where the host reported none), `call` with a tool
and arguments, `say` with the model's last words. Relative paths are below the folder of the session, `/srv/shop`.

`held_out.toml` was labelled without a look at the code that judges, and tried once: 3 of 1,599 passed as done, 64 of
269 were refused. What was wrong was then mended.
"""

"""Schedules of saved plans: the times of a cron expression, what becomes of a tick, and the task that starts runs.

`cron` and `ticks` are pure: the time comes in as an argument. Storage is a port (`storage/ports/schedules.py`), and so
is what starts a plan (`runner`). No MCP tool leads here: a model can neither make nor change a schedule.
"""

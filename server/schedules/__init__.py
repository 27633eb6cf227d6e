"""Schedules of saved plans: the times of a cron expression, what happens at each tick, and the task that starts runs.

`storage/schedules.py` stores them, and what starts a plan is a port (`PlanRunner`). No MCP tool leads here: a model can
neither make nor change a schedule.
"""

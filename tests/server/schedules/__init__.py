"""Schedules: the times of cron, what becomes of ticks, and the runs that they start."""

"""What a process does with the executions of its store."""

from typing import Literal, get_args

ProcessRole = Literal["front", "worker", "both"]
"""`front` answers callers and people and runs nothing, `worker` runs and answers nobody."""
PROCESS_ROLES: tuple[ProcessRole, ...] = get_args(ProcessRole)
CONCURRENCY = 100
"""Executions that a worker runs at a time by default."""

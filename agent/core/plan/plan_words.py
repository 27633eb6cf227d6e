"""Words and limits of plans, for those who need them without the form in which plans are handed in."""

from typing import Literal

StepType = Literal["tool", "reasoning"]
ValidationMode = Literal["strict", "advisory"]
OnReject = Literal["skip", "stop", "continue"]
OnItemFailure = Literal["stop", "continue"]

MAX_STEPS = 50
MAX_CALLS_PER_STEP = 50
MAX_CONDITIONS = 20
MAX_ID_CHARS = 64
MAX_NAME_CHARS = 128
MAX_TEXT_CHARS = 20_000
STEPS_KEYS = ("todoList", "steps")
"""The key of the list of steps, and its name in older plans."""

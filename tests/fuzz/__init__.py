"""Fuzzing: random and broken input at every entrance, seeded, so that each input can be made again.

`python -m tests.fuzz` (or `make fuzz`) runs one part: `part.py` lists the entrances, `inputs.py` makes the inputs from
real messages. After each input: no internal error, no traceback in the log, no stall of the event loop above 100 ms, a
known code and a sentence for each refusal, and an ordinary request is still answered.
"""

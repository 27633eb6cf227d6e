"""Fuzzing: random and broken input at every entrance, seeded, so that each input can be made again.

`python -m tests.fuzz` (or `make fuzz`) runs one part and adds its figures to `build/fuzz.jsonl`; `entrances/` has one
module for each way in; `mutation.py` makes the inputs from real messages; `watch.py` sees stalls and log lines. After
each input: no internal error, no traceback in the log, no stall of the event loop above 100 ms, a known code and a
sentence for each refusal, and an ordinary request is still answered.
"""

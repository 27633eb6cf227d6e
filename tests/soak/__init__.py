"""An hour of mixed load on real processes, and proof that nothing grows: memory, threads, file descriptors, the log.

`make soak` runs it; `MINUTES=5` makes it shorter. Nothing in it is held against a clock, so a busy machine
only makes it do less.
"""

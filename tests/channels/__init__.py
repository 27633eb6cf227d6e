"""What a decision must do, over every channel through which a person, a model or a program can decide.

`suite` has the cases as data, `channels` one driver for each channel, and `test_decisions` runs all of them. What a
channel cannot do is a row of the case that says why, and what is observed instead. `python -m tests.channels` prints
the matrix.
"""

"""Planted bugs: each breaks one law, and a test must find it. A bug that nothing finds is a test that is missing.

`patches/NAME.patch` begins with `Law:`, the law in one sentence, and `Tests:`, the tests that must find the bug: files
below `tests/`, or node ids. After an empty line comes a small unified diff against the four roots. To plant a new bug,
change the code, run `git diff -U1 FILE` into the patch below its head, and take the change back.

`python -m tests.teeth` (or `make teeth`) plants each bug in a copy of the tree, runs its tests there, and runs those
that fail without the bug again. `PART=1/4` runs a part, `NAMES="..."` single ones, and `ALL=1` the whole folders of
their tests. `make test` sees only that every patch applies and that its tests are there. After code moved from one
module to another, `python -m tests.teeth --mend` names the new file in the patches.
"""

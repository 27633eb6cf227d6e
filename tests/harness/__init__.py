"""One harness for all tests with several processes, crashes or random mishaps; `README.md` names its pieces."""

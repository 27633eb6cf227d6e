"""The checks of `doctor`: each module has those of one subject, and `doctor` runs them all."""

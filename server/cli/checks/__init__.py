"""The checks of the command doctor: each module has those of one subject."""

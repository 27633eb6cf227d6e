"""Moves a whole store to another place: `move` has the order of things, the other modules know one database each."""

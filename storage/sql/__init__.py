"""What every SQL database keeps in the same way: tokens, sessions, keys, grants, notifications; how rows are read."""

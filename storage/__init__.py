"""Where logs live: the in-memory and SQLite implementations of the `Store` port, and the codec between events and JSON."""

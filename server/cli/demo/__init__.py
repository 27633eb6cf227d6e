"""The command `demo` and what it works on."""

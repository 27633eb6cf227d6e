"""The command `demo` and the files that it works on."""

"""What the command `demo` shows, and the files that it works on."""

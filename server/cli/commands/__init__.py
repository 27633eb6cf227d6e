"""One module for each command or group of commands: its handlers, its work and what it draws."""

"""The command line: the parser, one module for each command in `commands/`, the terminal, and the demo."""

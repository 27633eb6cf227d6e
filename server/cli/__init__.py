"""The command line: the parser, one module a command in `commands/`, drawing and asking in `terminal/`, and the demo."""

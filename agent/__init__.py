"""The engine: a pure core (plan, events, state, decide, verify, prompts) and the shell that performs what it decides."""

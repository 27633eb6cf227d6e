"""One execution: its events, the state that folds them, its questions, and what the log proves."""

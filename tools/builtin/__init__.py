"""Tools that ship with planwarden and need no network: questions to a person, `wait`, `calculator`."""

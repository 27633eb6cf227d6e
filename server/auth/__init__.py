"""Authentication of callers over HTTP: tokens, OAuth, and the networks on which a server may listen."""

"""The protocol's own conformance suite against planwarden: `python -m tests.conformance`, or `make conformance`."""

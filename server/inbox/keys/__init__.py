"""Signing keys in the inbox: the page that lists them, the address where browsers can use them, signing a decision."""

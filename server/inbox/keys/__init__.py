"""Signing keys in the inbox: the page that lists them, where a browser can use them, signing a decision."""

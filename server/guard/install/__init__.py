"""Puts planwarden into a host's files and takes it out again: only planwarden's own lines change.

Nothing here asks anybody; the command shows the change and writes it.
"""

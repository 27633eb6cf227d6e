"""What puts planwarden into a host's files and takes it out again: only its own lines, everything else as it was.

Nothing here asks anybody; the command shows the change and writes it.
"""

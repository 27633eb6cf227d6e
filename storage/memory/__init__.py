"""The store without a disk: every law of the ports except durability. For tests and throw-away use."""

"""What the processes of a home share beside the store, where several classes implement it: secrets."""

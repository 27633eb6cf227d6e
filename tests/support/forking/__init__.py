"""Commands as real processes that start in milliseconds: forked from one that has imported all of planwarden."""

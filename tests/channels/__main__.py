"""`python -m tests.channels` prints the matrix of cases and channels."""

from tests.channels.suite import print_matrix

print(print_matrix())

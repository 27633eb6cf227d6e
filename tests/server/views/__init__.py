"""What people are shown of an execution, on every surface."""

"""What a store keeps beside executions, one protocol a module: tokens, sessions, notifications, keys."""

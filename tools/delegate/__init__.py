"""Goals handed to other agents."""

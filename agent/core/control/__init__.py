"""What follows next: `decide` and the actions that it returns."""

"""Tools that read the web, and the guard that decides which addresses they may reach."""

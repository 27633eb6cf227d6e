"""The pages of the inbox, one a module: routes, what a page shows, what a form on it does."""

"""The pages of the inbox, one per module: its routes, what it shows, and what its forms do."""

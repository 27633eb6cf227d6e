"""What `planwarden init` writes: settings, tools and a plan. Everything here is copied as it is."""

"""The commands of `planwarden`, one noun a module."""

"""Plans: what a caller hands in, how it is parsed and checked, and what a checked plan holds."""

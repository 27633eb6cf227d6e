"""Writes the generated parts of the documentation."""

from dev.reference.pages import main

main()

"""Writes the generated parts of the documentation."""

from tests.reference.pages import main

main()

"""Saved plans: files that the operator keeps in folders, read, checked, versioned and listed by name.

These modules read files and never start anything: the service does. Only `plan_writer` writes a file, and only
the command line and one page of the inbox import it: no model can write or change a saved plan.
"""

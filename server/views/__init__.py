"""What people and programs see of an execution: views, observations, and the facts of a question as text.

Pure functions of state. Nothing here stores, asks or decides.
"""

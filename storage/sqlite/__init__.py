"""The store on a SQLite file that several processes may share.

SQL stands in `statements.sql`, by name; the schema in `migrations/`. Nothing outside this folder knows SQLite.
"""

"""The store on a SQLite file that several processes may share, or in memory. Only this folder knows SQLite."""

"""The store on a SQLite file that several processes may share, or in memory. Nothing outside this folder knows SQLite."""

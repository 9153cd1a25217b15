"""The store on disk: a log of commits and an SQLite index of it, in one data folder."""

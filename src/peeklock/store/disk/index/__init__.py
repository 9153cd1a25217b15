"""The index of the log: which messages there are and where the log has their bytes, in SQLite."""

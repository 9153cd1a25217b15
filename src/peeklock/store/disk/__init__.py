"""The embedded store: a log of commits and its index, in one folder."""

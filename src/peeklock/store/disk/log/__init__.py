"""The log: records of commits in segment files. Knows nothing of the index."""

"""The log: records of commits in segment files. It does not depend on the index."""

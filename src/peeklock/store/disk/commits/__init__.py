"""What a commit is, between the broker's changes and the bytes of the log."""

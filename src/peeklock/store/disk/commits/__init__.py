"""The conversion of the broker's changes to records of the log and to statements for the index."""

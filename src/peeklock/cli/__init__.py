"""The command line `peeklock`: one module for each group of commands."""

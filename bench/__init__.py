"""Benchmarks: `python -m bench` from the root of the repository. The broker and the load never share a process."""

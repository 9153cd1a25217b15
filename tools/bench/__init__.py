"""Benchmarks: `python -m tools.bench`, run from the root of the repository.

The broker and the load never share a process.
"""

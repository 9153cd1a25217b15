"""Benchmarks: `python -m tools.bench`, run from the root of the repository.

Broker and load always run in different processes.
"""

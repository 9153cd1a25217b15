"""Fault injection with a history checker: tests the broker's promises while it is killed, suspended and disconnected.

`python -m tools.chaos` runs it. docs/chaos.md describes the faults and the checks.
"""

"""Faults and a history checker: what the broker promises, tried while it is killed, stopped and cut off all the time.

`python -m tools.chaos` runs it; docs/chaos.md says what is done and what is checked.
"""

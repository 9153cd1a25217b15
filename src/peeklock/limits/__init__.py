"""The limits that clients meet: each is declared once, with its unit, what it bounds and what happens beyond it.

docs/limits.md is made from these declarations. Constants of a specification or a file format are not limits in this
sense; they stay in the module of their concept.
"""

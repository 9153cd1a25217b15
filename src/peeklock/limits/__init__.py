"""The limits that clients can reach. Each is declared once, with its unit, its meaning and what happens beyond it.

docs/limits.md is generated from these declarations. Constants of a specification or a file format are not limits in
this sense; they are in the module that uses them.
"""

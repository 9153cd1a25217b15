"""Durability behind one narrow protocol."""

"""Look after a data folder: describe it, check it, repair it, back it up and restore it.

The broker does not use this; `peeklock store` does.
"""

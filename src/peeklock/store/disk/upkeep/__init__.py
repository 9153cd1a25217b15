"""Maintenance of data folders for the command `peeklock store`: info, check, repair, backup and restore.

The broker does not use this package.
"""

"""Rows of a table or a file, read as tasks."""

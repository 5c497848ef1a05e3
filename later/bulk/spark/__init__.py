"""Spark's session: its preconditions, its errors in one line, and signals."""

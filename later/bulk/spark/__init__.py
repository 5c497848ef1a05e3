"""The Spark session of a command: its preconditions, its errors in one line, and signals."""

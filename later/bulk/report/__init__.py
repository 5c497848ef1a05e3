"""The report on an export and on a table of rejects."""

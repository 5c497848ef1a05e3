"""The report of `later bulk report`, on an export and on a table of rejects."""

"""The report on an export and its rejects."""

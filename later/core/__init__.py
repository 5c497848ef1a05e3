"""The words: pure decisions and data, no I/O and no clock."""

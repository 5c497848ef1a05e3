"""Pure decisions and data, without I/O and without a clock."""

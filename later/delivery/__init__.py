"""HTTP out: makes the calls."""

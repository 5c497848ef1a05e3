"""Measures later beside its references, on this machine: `make bench`, or `python -m scripts.bench --help`."""

"""Benchmarks of later and of its references on one machine: `make bench`, or `python -m scripts.bench --help`."""

"""The tests that are collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("standardwebhooks") is not None else ["test_signing.py"]
"""It compares signatures with a reference, which brings libraries that no application has to have."""

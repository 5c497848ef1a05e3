"""The tests that are collected."""

from __future__ import annotations

from tests.environment import HAS_SERVER

collect_ignore = [] if HAS_SERVER else ["test_api_transport.py"]
"""Tests of a client of the API itself."""

"""The tests that are collected."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = {
    "standardwebhooks": ["test_signing.py"],  # the reference for signatures, which brings further libraries
    "prometheus_client": ["test_history.py", "test_operator_event.py"],  # which hold names to those of metrics
    "cronsim": ["test_cron.py", "test_schedule.py"],
}
"""Libraries that an application does not have to have, and the tests that need them."""
collect_ignore = [test for library, tests in NEEDED.items() if find_spec(library) is None for test in tests]

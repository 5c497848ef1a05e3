"""The tests that are collected, and the kinds of clients that tests run with."""

from __future__ import annotations

import pytest

from tests.client.both_clients import KINDS
from tests.environment import HAS_SERVER

collect_ignore = [] if HAS_SERVER else ["test_api_clients.py", "test_api_transport.py", "test_documented_clients.py"]
"""Tests of clients of the API itself."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of client that applications have."""
    return str(request.param)

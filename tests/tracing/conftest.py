"""Fixtures for tests of traces."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from later.tracing.export_log import LOGGER


@pytest.fixture(autouse=True)
def own_logger() -> Iterator[None]:
    """Give the logger of OpenTelemetry back as it was."""
    logger = logging.getLogger(LOGGER)
    handlers, propagates, interval_s = logger.handlers[:], logger.propagate, sys.getswitchinterval()
    yield
    logger.handlers[:], logger.propagate = handlers, propagates
    sys.setswitchinterval(interval_s)

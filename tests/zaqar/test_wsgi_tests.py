"""Zaqar's own tests of its HTTP API, v2, against a running daemon."""

from __future__ import annotations

import uuid
from importlib import import_module
from pkgutil import iter_modules

import pytest
from zaqar.tests.unit.transport.wsgi import base, v2_0

from tests.system.daemons import Daemon
from tests.zaqar.configurations import CONFIGURATIONS
from tests.zaqar.daemon_in_zaqar import DaemonInZaqar
from tests.zaqar.suites import SuiteTest, load

TESTS = load(import_module(f"{v2_0.__name__}.{module.name}") for module in iter_modules(v2_0.__path__))


@pytest.fixture(autouse=True)
def daemon_in_zaqar(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test that starts Zaqar's server get the daemon, and projects that no other test has."""
    monkeypatch.setattr(
        base.bootstrap, "Bootstrap", lambda configuration: DaemonInZaqar(daemon.url, f"{uuid.uuid4().hex}-")
    )


@pytest.mark.parametrize("test", [test for test in TESTS if not test.is_left_out()], ids=str)
def test_a_test_of_zaqar_passes(test: SuiteTest) -> None:
    if failure := test.failure():
        pytest.fail(failure, pytrace=False)


@pytest.mark.parametrize("daemon", CONFIGURATIONS[:1], indirect=True)
def test_what_is_left_out_does_not_pass(daemon: Daemon) -> None:
    passing = [str(test) for test in TESTS if test.is_left_out() and not test.failure()]
    assert passing == [], "these pass: take them out of the table"

"""The functional tests of Zaqar's client against a running daemon."""

from __future__ import annotations

import pytest
from zaqarclient.tests.queues.base import QueuesTestBase

from tests.system.daemons import Daemon
from tests.zaqar import client_tests
from tests.zaqar.configurations import CONFIGURATIONS
from tests.zaqar.suites import SuiteTest, load

TESTS = [test for test in load([client_tests]) if test.case.__module__ == client_tests.__name__]


@pytest.fixture(autouse=True)
def daemon_of_the_client(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client call the daemon."""
    monkeypatch.setattr(QueuesTestBase, "url", daemon.url)


@pytest.mark.parametrize("test", [test for test in TESTS if not test.is_left_out()], ids=str)
def test_a_test_of_the_client_passes(test: SuiteTest) -> None:
    if failure := test.failure():
        pytest.fail(failure, pytrace=False)


@pytest.mark.parametrize("daemon", CONFIGURATIONS[:1], indirect=True)
def test_what_is_left_out_does_not_pass(daemon: Daemon) -> None:
    passing = [str(test) for test in TESTS if test.is_left_out() and not test.failure()]
    assert passing == [], "these pass: take them out of the table"

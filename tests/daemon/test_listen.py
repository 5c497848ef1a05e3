"""What is logged about the address that a daemon listens on."""

from __future__ import annotations

from structlog.testing import capture_logs

from later.daemon.listen import log_listening
from later.option_types import Address


def test_a_daemon_that_others_reach_says_by_which_names() -> None:
    with capture_logs() as events:
        log_listening(Address("later.internal", 8080), [Address("10.0.0.5", 8080)], frozenset({"later"}))
    assert [event["event"].partition(":")[0] for event in events] == [
        "listening",
        "listening beyond this machine",
        "other host names are refused",
    ]
    assert events[-1]["hosts"] == "later, later.internal, localhost"


def test_a_daemon_on_loopback_says_nothing_of_names() -> None:
    with capture_logs() as events:
        log_listening(Address("127.0.0.1", 0), [Address("127.0.0.1", 8080)], frozenset())
    assert [event["event"] for event in events] == ["listening"]

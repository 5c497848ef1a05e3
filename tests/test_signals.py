"""Termination signals that are ignored or deferred, and handled as before afterwards."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from threading import Thread

import pytest

from later.signals import TERMINATION_SIGNALS, defer_signals, ignore_signals


@pytest.fixture(autouse=True)
def received() -> Iterator[list[int]]:
    """Record the signals received."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: received.append(number)) for number in TERMINATION_SIGNALS
    }
    yield received
    for number, handler in before.items():
        signal.signal(number, handler)


def send(*numbers: int) -> None:
    for number in numbers:
        signal.raise_signal(number)


def test_the_first_signal_is_raised_at_the_end(received: list[int]) -> None:
    with defer_signals():
        send(signal.SIGTERM, signal.SIGINT)
        assert received == []
    assert received == [signal.SIGTERM]
    send(signal.SIGHUP)
    assert received == [signal.SIGTERM, signal.SIGHUP]


def test_a_signal_comes_before_the_error_that_it_caused(received: list[int]) -> None:
    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)

    def work() -> None:
        with defer_signals():
            send(signal.SIGINT)
            raise OSError("Java has ended")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_an_ignored_signal_stays_ignored(received: list[int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with defer_signals():
        send(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_signals_may_be_ignored(received: list[int]) -> None:
    with ignore_signals():
        send(*TERMINATION_SIGNALS)
    assert received == []
    send(signal.SIGTERM)
    assert received == [signal.SIGTERM]


@pytest.mark.parametrize("context", [defer_signals, ignore_signals])
def test_other_threads_change_no_handlers(context: type, received: list[int]) -> None:
    def work() -> None:
        with context():
            send(signal.SIGTERM)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert received == [signal.SIGTERM]

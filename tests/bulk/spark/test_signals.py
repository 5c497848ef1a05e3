"""Signals that ask for an end: passed over, or heeded later, and afterwards as before."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from threading import Thread

import pytest

from later.bulk.spark.signals import TERMINATION_SIGNALS, defer_signals, ignore_signals


@pytest.fixture(autouse=True)
def heard() -> Iterator[list[int]]:
    """What came of those that are sent."""
    heard: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: heard.append(number)) for number in TERMINATION_SIGNALS
    }
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_the_first_comes_when_the_work_is_done(heard: list[int]) -> None:
    with defer_signals():
        send(signal.SIGTERM, signal.SIGINT)
        assert heard == []
    assert heard == [signal.SIGTERM]
    send(signal.SIGHUP)
    assert heard == [signal.SIGTERM, signal.SIGHUP]


def test_it_comes_before_what_it_led_to(heard: list[int]) -> None:
    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)

    def work() -> None:
        with defer_signals():
            send(signal.SIGINT)
            raise OSError("Java has ended")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_what_is_ignored_stays_ignored(heard: list[int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with defer_signals():
        send(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_whoever_asks_again_disturbs_nothing(heard: list[int]) -> None:
    with ignore_signals():
        send(*TERMINATION_SIGNALS)
    assert heard == []
    send(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("context", [defer_signals, ignore_signals])
def test_in_another_thread_they_are_not_its_matter(context: type, heard: list[int]) -> None:
    def work() -> None:
        with context():
            send(signal.SIGTERM)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [signal.SIGTERM]

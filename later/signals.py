"""Signals that ask a process to end, and sections that they must not interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

TERMINATION_SIGNALS = tuple(
    number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
)
"""Those of them that the platform has: Windows has SIGBREAK and no SIGHUP."""

Handler = Callable[[int, FrameType | None], object] | int | None


@contextmanager
def signal_handlers(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Install signal handlers, and restore the previous ones at the end.

    Does nothing outside the main thread: the others get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def handled_signals(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Return the signals that the process does not ignore; under nohup it ignores SIGHUP."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore termination signals: a shutdown that has begun is not interrupted by a second signal."""
    with signal_handlers(dict.fromkeys(TERMINATION_SIGNALS, signal.SIG_IGN)):
        yield


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer termination signals, and raise the first one at the end. Signals that are ignored stay ignored."""
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        received.append(number)

    try:
        with signal_handlers(dict.fromkeys(handled_signals(TERMINATION_SIGNALS), record)):
            yield
    finally:
        if received:
            signal.raise_signal(received[0])


@contextmanager
def restore_sigint() -> Iterator[None]:
    """Restore the handler of SIGINT at the end: Spark's context installs one that cancels its jobs."""
    with signal_handlers({signal.SIGINT: signal.getsignal(signal.SIGINT)}):
        yield

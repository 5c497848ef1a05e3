"""Signals that ask a process to end, and what must not be broken off by a second one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ignore_signals() -> Iterator[None]:
    """Pass them over: what began to end ends, and whoever asks again, impatient, breaks nothing.

    In the main thread; the others get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in TERMINATION_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Let them come afterwards. What is ignored stays so; in the main thread, as above."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    come: list[int] = []
    heeded = [number for number in TERMINATION_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, frame: come.append(number)) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if come:
            signal.raise_signal(come[0])


@contextmanager
def restore_sigint() -> Iterator[None]:
    """Let Ctrl-C do afterwards what it did before: Spark's context, once it is there, cancels its jobs by it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

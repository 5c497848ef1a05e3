"""Signals that ask a process to end, and what must not be broken off by a second one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Pass them over: what began to end ends, and whoever asks again, impatient, breaks nothing.

    In the main thread; the others get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Let them come afterwards. What is ignored stays so; in the main thread, as above."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    come: list[int] = []
    heeded = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, frame: come.append(number)) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if come:
            signal.raise_signal(come[0])


@contextmanager
def interrupt_kept() -> Iterator[None]:
    """Let Ctrl-C do afterwards what it did before: Spark's context, once it is there, cancels its jobs by it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

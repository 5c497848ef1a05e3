"""Signals in the first moments of a process, while it imports what it needs.

Imports take a tenth of a second and more. In that time SIGTERM would kill the process, and Ctrl-C would end it with a
traceback. Nothing has been started yet, so there is nothing to stop: the process can exit at once.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
"""The exit status of a command that Ctrl-C ended."""


def exit_on_termination() -> None:
    """Let the signals that stop a daemon end this process with status 0, until the daemon handles them itself.

    A SIGHUP that is ignored (under nohup) stays ignored.
    """
    numbers = [signal.SIGTERM, signal.SIGINT]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        numbers.append(hangup)
    for number in numbers:
        signal.signal(number, lambda *_: os._exit(0))


def exit_on_interrupt() -> None:
    """Let Ctrl-C end this process at once and without a traceback. An ignored SIGINT stays ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _exit_interrupted)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, where `exit_on_interrupt` was called."""
    if signal.getsignal(signal.SIGINT) is _exit_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)

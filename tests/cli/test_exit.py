"""Signals that end a command: its exit code, and the handlers afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from later.cli.exit import TerminationSignal, exit_code, handle_termination_signals


@pytest.fixture(autouse=True, params=[signal.SIGTERM, signal.SIGHUP])
def number(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of a signal that ends a command. Its handler is restored."""
    previous = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, previous)


def run_with_signal(number: int) -> int:
    """Do some work that the signal interrupts."""
    with handle_termination_signals():
        signal.raise_signal(number)
    return 0


def test_the_exit_code_names_the_signal(number: int) -> None:
    assert exit_code(lambda: run_with_signal(number)) == 128 + number


def test_an_error_after_the_signal_does_not_hide_it(number: int) -> None:
    """Writing to a terminal that has gone raises OSError."""

    def work() -> None:
        try:
            signal.raise_signal(number)
        finally:
            raise OSError(5, "Input/output error")

    with pytest.raises(TerminationSignal) as stopped, handle_termination_signals():
        work()

    assert stopped.value.number == number


def test_output_that_cannot_be_written_does_not_change_the_exit_code(number: int) -> None:
    """The interpreter flushes at its end, and exits with a code of its own if that fails."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    code = f"""
import io, os, sys
from later.cli.exit import exit_code, handle_termination_signals

def work():
    with handle_termination_signals():
        sys.stderr = io.TextIOWrapper(sys.stderr.buffer)
        sys.stderr.write("half a line")
        os.kill(os.getpid(), {number:d})

sys.exit(exit_code(work))
"""
    assert subprocess.run([sys.executable, "-c", code], stderr=write_end, check=False).returncode == 128 + number
    os.close(write_end)


def test_an_ignored_signal_stays_ignored(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)

    assert exit_code(lambda: run_with_signal(number)) == 0


def test_the_previous_handler_is_restored(number: int) -> None:
    def handler(number: int, frame: object) -> None:
        """Handle nothing."""

    signal.signal(number, handler)
    exit_code(lambda: run_with_signal(number))

    assert signal.getsignal(number) is handler

"""A command that signals may end: which of them, with which exit status, and what they do afterwards."""

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
    """A signal that ends a job. Whatever it does is put back."""
    before = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, before)


def sent(number: int) -> int:
    """Some work, in the middle of which the signal comes."""
    with handle_termination_signals():
        os.kill(os.getpid(), number)
    return 0


def test_the_exit_status_says_which_signal_it_was(number: int) -> None:
    assert exit_code(lambda: sent(number)) == 128 + number


def test_whatever_it_leads_to_it_was_the_signal(number: int) -> None:
    """A terminal that is gone cannot be told, and raises that."""

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            raise OSError(5, "Input/output error")

    with pytest.raises(TerminationSignal) as stopped, handle_termination_signals():
        work()

    assert stopped.value.number == number


def test_what_cannot_be_told_any_more_does_not_change_the_status(number: int) -> None:
    """The interpreter flushes at its end, and has a status of its own for what fails then."""
    reads, writes = os.pipe()
    os.close(reads)
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
    assert subprocess.run([sys.executable, "-c", code], stderr=writes, check=False).returncode == 128 + number
    os.close(writes)


def test_what_is_ignored_stays_ignored(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)

    assert exit_code(lambda: sent(number)) == 0


def test_afterwards_it_does_what_it_did_before(number: int) -> None:
    def heard(number: int, frame: object) -> None:
        """It is somebody else's."""

    signal.signal(number, heard)
    exit_code(lambda: sent(number))

    assert signal.getsignal(number) is heard

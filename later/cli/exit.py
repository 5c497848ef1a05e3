"""The end of a command: its exit code, the signals that end it, and its error message of one line."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, TextIO

import click

from later.cli.console import notify
from later.core.errors import ConfigError, LaterError
from later.signals import TERMINATION_SIGNALS, handled_signals, signal_handlers


class ExitStatus(NamedTuple):
    """The exit code of a command. With `immediate`, the process exits without waiting for its threads."""

    code: int
    immediate: bool = False


class TerminationSignal(BaseException):
    """The signal that ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class CommandFailed(LaterError):
    """The failure of a command that has an exit code for its reason. The text is the reason."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


@contextmanager
def handle_termination_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt the main thread as Ctrl-C does, so that cleanup runs.

    A signal that is ignored (SIGHUP under nohup) stays ignored. The previous handlers are restored at the end.

    Raises:
        TerminationSignal: a signal came before the work was done.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    numbers = [number for number in TERMINATION_SIGNALS if number != signal.SIGINT]
    with signal_handlers(dict.fromkeys(handled_signals(numbers), interrupt)):
        try:
            yield
        except BaseException as error:  # also an error after the signal, such as a write to a terminal that has gone
            if received:
                raise TerminationSignal(received[0]) from error
            raise


def exit_code(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code. If it fails, print the reason in one line and return the code for it."""
    try:
        return work()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt, TerminationSignal) as error:
        for stream in (sys.stdout, sys.stderr):  # after SIGHUP the terminal has gone
            try:
                stream.flush()
            except OSError:
                _discard_output(stream)
        return 128 + (error.number if isinstance(error, TerminationSignal) else signal.SIGINT)
    except BrokenPipeError:
        _discard_output(sys.stdout)
        return 1
    except (LaterError, OSError) as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror is not None:
            reason = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        notify(reason)
        code = 2 if isinstance(error, ConfigError) else 1
        return error.code if isinstance(error, CommandFailed) else code
    except Exception:  # a bug: its traceback is needed to fix it
        traceback.print_exc()
        return 1


def _discard_output(stream: TextIO) -> None:
    """Redirect a stream without a reader (`later query … | head -1`) to /dev/null.

    Otherwise the interpreter fails when it flushes the stream at exit.
    """
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)

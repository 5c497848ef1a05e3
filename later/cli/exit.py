"""How commands end: exit statuses, and the reason in one line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, TextIO

import click

from later.cli.console import say
from later.core.errors import ConfigError, LaterError


class Ended(NamedTuple):
    """How a command ended: its exit status, and whether the process is to leave without waiting for its threads."""

    status: int
    at_once: bool = False


class Stopped(BaseException):
    """A signal of this number has ended the work."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, in the main thread: all that is under way is brought to an end.

    What is ignored (SIGHUP, by nohup) stays so. Afterwards they do what they did before.

    Raises:
        Stopped: one came, and the work did not get to its end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    heard = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    except BaseException as error:  # also what it led to: a terminal that is gone cannot be told
        if came:
            raise Stopped(came[0]) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def attempt(work: Callable[[], int]) -> int:
    """The exit status of some work; where it does not work, the reason is said in one line."""
    try:
        return work()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt, Stopped) as error:
        _drop_untold()
        return 128 + (error.number if isinstance(error, Stopped) else signal.SIGINT)
    except BrokenPipeError:
        _drop_output(sys.stdout)
        return 1
    except (LaterError, OSError) as error:
        say(_reason(error))
        return 2 if isinstance(error, ConfigError) else 1
    except Exception:  # a fault of our own: whoever mends it needs to see where
        traceback.print_exc()
        return 1


def _reason(error: LaterError | OSError) -> str:
    if isinstance(error, LaterError) or error.strerror is None:
        return str(error) or type(error).__name__
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _drop_untold() -> None:
    """What a terminal that is gone, by SIGHUP, will never be told."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _drop_output(stream)


def _drop_output(stream: TextIO) -> None:
    """Nobody reads on (`later query … | head -1`); or the interpreter complains when it flushes at the end."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, stream.fileno())
    os.close(descriptor)

"""How commands end: exit statuses, and the reason in one line."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NamedTuple

import click

from later.cli.say import say
from later.core.errors import ConfigError, LaterError


class Ended(NamedTuple):
    """How a command ended: its exit status, and whether the process is to leave without waiting for its threads."""

    status: int
    at_once: bool = False


def attempt(work: Callable[[], int]) -> int:
    """The exit status of some work; where it does not work, the reason is said in one line."""
    try:
        return work()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        _drop_output()
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


def _drop_output() -> None:
    """Nobody reads on (`later query … | head -1`); or the interpreter complains when it flushes at the end."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)

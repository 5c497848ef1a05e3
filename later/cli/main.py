"""The entry of the program `later`. It handles signals first, and then imports the rest."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from later.startup import INTERRUPTED, exit_on_interrupt, exit_on_termination, raise_on_interrupt

DAEMONS = ("up", "serve", "worker", "dev", "run")
"""The commands that a signal stops with status 0."""


def main() -> None:
    """Run the program and end the process."""
    if next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None) in DAEMONS:
        exit_on_termination()
    else:
        exit_on_interrupt()
    _open_missing_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # any answer can be printed, whatever the terminal's encoding
    from later.cli.program import run  # noqa: PLC0415  # signals must be handled before this import

    try:
        raise_on_interrupt()
        status = run(sys.argv[1:])
        exit_on_interrupt()
    except KeyboardInterrupt:  # just before the command, or just after it
        os._exit(INTERRUPTED)
    if status.immediate:
        # A daemon's thread may hang in a name lookup for a minute, and the interpreter would wait for it.
        os._exit(status.code)
    sys.exit(status.code)


def _open_missing_streams() -> None:
    """Open standard input, output and error on /dev/null if they are closed (`2>&-`).

    Otherwise the next file or connection opened would get such a descriptor, and would receive all that is printed.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets `number`, the lowest free descriptor
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # never closed

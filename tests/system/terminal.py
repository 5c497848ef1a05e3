"""Run `later` in the foreground of a terminal: `python terminal.py TERMINAL ARGUMENT…`, as session leader."""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    terminal = os.open(sys.argv.pop(1), os.O_RDWR)  # a session's first terminal becomes the controlling one
    os.dup2(terminal, 0)
    sys.path[0] = ""
    runpy.run_module("later", run_name="__main__", alter_sys=True)

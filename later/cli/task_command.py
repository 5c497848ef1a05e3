"""One run of a command for a claimed task: what the command is given, and what its end says about the task."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any

from later.client.consumer import ClaimedJson
from later.core.retry import MAX_NACK_CHARS

RELEASE_STATUS = os.EX_TEMPFAIL
"""The exit status (75) by which a command gives its task back."""
MAX_LINE_BYTES = 4096
STDERR_GRACE_S = 1.0
"""How long to read on after the end of a command: a process that it has left behind may keep its output open."""


class TaskCommand:
    """A command that runs for a task. `ended_by_us` is true if it was told to end, whatever its exit status is then."""

    def __init__(self, command: Sequence[str], task: ClaimedJson) -> None:
        """Start the command. Raises OSError: it cannot be started."""
        self.task = task
        self.ended_by_us = False
        self.is_lost = False
        """True if its lease was lost: then nothing is to be said about the task."""
        self._last_line = b""
        with tempfile.TemporaryFile() as content:  # a pipe would have to be written while the command runs
            content.write(task.content.encode())
            content.seek(0)
            self._process = subprocess.Popen(
                command,
                stdin=content,
                stderr=subprocess.PIPE,
                env={**os.environ, **command_variables(task)},
                start_new_session=True,  # Ctrl-C in the terminal is for us alone
            )
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    def wait(self) -> int:
        """Wait for the command's end, and return its exit status; less than 0 is minus the signal that ended it."""
        status = self._process.wait()
        self._reader.join(STDERR_GRACE_S)
        return status

    def why_failed(self, status: int) -> str:
        """Return why the command failed: the last line that it wrote to standard error, or else how it ended."""
        line = self._last_line.decode("utf-8", "replace").strip()
        if not line:
            line = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
        return line if len(line) <= MAX_NACK_CHARS else line[: MAX_NACK_CHARS - 1] + "…"

    def end(self, number: signal.Signals) -> None:
        """Tell the command, and all processes of its session, to end."""
        self.ended_by_us = True
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            self._process.send_signal(number)

    def _pass_on(self, stderr: IO[bytes]) -> None:
        """Copy the command's standard error to ours, and keep its last line."""
        for line in iter(lambda: stderr.readline(MAX_LINE_BYTES), b""):
            if line.strip():
                self._last_line = line
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


def command_variables(task: ClaimedJson) -> dict[str, str]:
    """Return the environment variables that tell a command about its task."""
    fields = task.fields
    last_error: Any = fields.get("last_error") or {}
    variables = {
        "LATER_ID": task.id,
        "LATER_TOPIC": fields.get("topic"),
        "LATER_ATTEMPT": fields.get("attempt"),
        "LATER_FAILURES": fields.get("failures"),
        "LATER_MAX_RETRY": fields.get("max_retry"),
        "LATER_DUE_AT": fields.get("due_at"),
        "LATER_CREATED_AT": fields.get("created_at"),
        "LATER_LAST_ERROR": last_error.get("message", ""),
        "LATER_HEADERS": json.dumps(fields.get("headers") or {}),
        "LATER_CONTEXT": json.dumps(fields.get("context") or {}),
    }
    return {name: str(value).replace("\0", "") for name, value in variables.items()}

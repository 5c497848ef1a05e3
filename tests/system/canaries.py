"""Secrets that all tests of processes use, and that must be seen nowhere: a key and a task's header."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from later.core.api_keys import make_key_text

KEY = make_key_text()
"""The API key that calls send, and commands get from the environment. Daemons that have no keys accept it as none."""
HEADER_VALUE = f"canary-{token_hex(16)}"
HEADERS = {"X-Canary": HEADER_VALUE}
"""A header of the tasks that tests create. Only the receiver may see its value."""


def check(text: str | bytes, place: str) -> None:
    """Fail if a canary is in a text. The failure says where, and does not repeat it."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    found = [name for name, canary in (("key", KEY), ("header", HEADER_VALUE)) if canary.encode() in data]
    assert not found, f"a secret is in {place}: the {' and the '.join(found)}"


def check_logs(folder: Path) -> None:
    """Fail if a canary is in a log in this folder, the store's included."""
    for log in folder.rglob("*.log"):
        check(log.read_bytes(), f"the log {log.name}")


def check_arguments() -> None:
    """Fail if a canary is in the arguments of a process, which `ps` shows to all users."""
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has just ended
            check(arguments.read_bytes(), "the arguments of a process")

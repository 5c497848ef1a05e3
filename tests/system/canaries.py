"""Secrets that tests of processes use, and that must be seen nowhere: a task's header, and keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from subprocess import Popen
from typing import Any

import pytest

from later.core.api_keys import make_key_text

KEY = make_key_text()
"""The API key that calls send, and commands get from the environment. Daemons that have no keys accept it as none."""
HEADER_VALUE = f"canary-{token_hex(16)}"
HEADERS = {"X-Canary": HEADER_VALUE}
"""A header of the tasks that tests create. Only the receiver may see its value."""


_SECRET = slice(15, None)
"""The part of a key that is secret; its id before that may be shown."""
_secrets = {"key": {KEY[_SECRET].encode()}, "header": {HEADER_VALUE.encode()}}


def add_key(text: str) -> str:
    """Let a key that a test has made be searched for from now on, and return it."""
    _secrets["key"].add(text[_SECRET].encode())
    return text


def check(text: str | bytes, place: str) -> None:
    """Fail if a canary is in a text. The failure says where, and does not repeat it."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    found = [name for name, secrets in _secrets.items() if any(secret in data for secret in secrets)]
    assert not found, f"a secret is in {place}: the {' and the '.join(found)}"


@contextmanager
def checked_processes() -> Iterator[None]:
    """Check the arguments and the output of each process that is started in the block, whatever starts it."""
    start, communicate = Popen.__init__, Popen.communicate

    def start_checked(process: Popen[Any], args: Any, *others: Any, **options: Any) -> None:
        words = [args] if isinstance(args, str | bytes | os.PathLike) else args
        check("\0".join(os.fsdecode(word) for word in words), "the arguments of a process")
        start(process, args, *others, **options)

    def communicate_checked(process: Popen[Any], *arguments: Any, **options: Any) -> tuple[Any, Any]:
        outputs = communicate(process, *arguments, **options)
        for output in filter(None, outputs):
            check(output, "the output of a process")
        return outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Popen, "__init__", start_checked)
        patch.setattr(Popen, "communicate", communicate_checked)
        yield


def check_logs(folder: Path) -> None:
    """Fail if a canary is in a log in this folder, the store's included."""
    for log in folder.rglob("*.log"):
        check(log.read_bytes(), f"the log {log.name}")


def check_arguments() -> None:
    """Fail if a canary is in the arguments of a process, which `ps` shows to all users."""
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has just ended
            check(arguments.read_bytes(), "the arguments of a process")

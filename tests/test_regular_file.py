"""Reading the files of keys, passwords and certificates: only regular ones of a sensible size, without waiting."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from later.cli.root_key import read_root_key
from later.client.http import ApiClient
from later.client.key_source import read_key
from later.config import load
from later.core.clock import Clock
from later.core.errors import ConfigError, StoreMismatch
from later.daemon.certificates import ServerCertificate, read_client_tls
from later.daemon.signing_key import read_masters
from later.regular_file import MAX_MIB, read_regular_file
from later.store.connections import connect
from later.store.url import password_from_environ

READERS: dict[str, Callable[[Path], object]] = {
    "--signing-key": lambda file: read_masters(load("worker", {"signing_key": str(file)}, {})),
    "--root-key-file": lambda file: read_root_key(load("serve", {"root_key_file": str(file)}, {}), {}),
    "--key-file": lambda file: read_key(str(file), {}),
    "--tls-cert": lambda file: ServerCertificate(file, None),
    "--ca of a worker": lambda file: read_client_tls(str(file), {}),
    "--ca of a caller": lambda file: ApiClient("https://localhost", 1.0, lambda: 0.0, ca=str(file)),
    "--redis": lambda file: connect(f"rediss://localhost?ssl_keyfile={file}", Clock(time.monotonic, time.time), 1.0),
    "LATER_REDIS_PASSWORD_FILE": lambda file: password_from_environ({"LATER_REDIS_PASSWORD_FILE": str(file)}),
}


def test_a_regular_file_is_read_whole_and_through_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"x" * MAX_MIB * 1024 * 1024)
    link.symlink_to(file)
    assert len(read_regular_file(link)) == MAX_MIB * 1024 * 1024


def test_no_option_takes_a_file_that_would_block_or_never_end(tmp_path: Path) -> None:
    fifo, long, bound = tmp_path / "fifo", tmp_path / "long", tmp_path / "socket"
    os.mkfifo(fifo)
    with long.open("wb") as opened:
        opened.truncate(1 << 40)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(bound))
        for name, read in READERS.items():
            for file, reason in (
                (fifo, "Not a regular file, which can be read again"),
                (Path("/dev/zero"), "Not a regular file, which can be read again"),
                (tmp_path, "Is a directory"),
                (long, f"Longer than {MAX_MIB} MiB"),
                (bound, "No such device or address"),
            ):
                with pytest.raises((ConfigError, StoreMismatch)) as caught:
                    read(file)
                assert f"cannot be read: {reason}" in str(caught.value), name
                assert str(file) in str(caught.value), name

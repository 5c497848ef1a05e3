"""The table `receivers` of later.toml: the certificates with which receivers are called, by host."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|[0-9a-f]*:[0-9a-f:.]*:[0-9a-f:.]*")
_FIELDS = ("cert", "key", "ca")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverTls:
    """The files for calls to a host. `cert` and `key` prove who calls; `ca` alone is trusted to prove who is called."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None


def parse_receivers(table: object) -> dict[str, ReceiverTls]:
    """Return the receivers of the file, by host or zone (`*.bank.example`, the names below it).

    Raises:
        ValueError: the table has another form; the text says where and what was expected.
    """
    if not isinstance(table, dict):
        raise ValueError('receivers: expected tables such as [receivers."*.bank.example"]')  # noqa: TRY004  # the file's
    receivers = {}
    for name, files in table.items():
        where = f'receivers."{name}"'
        host = name.lower().removesuffix(".")
        if not _HOST.fullmatch(host):
            raise ValueError(f"{where}: expected a host without a port, or *.zone")
        if host in receivers:
            raise ValueError(f"{where}: this host is given twice")
        if not isinstance(files, dict) or not files or not all(isinstance(file, str) for file in files.values()):
            raise ValueError(f"{where}: expected the names of files: cert, key, ca")
        for field in files:
            if field not in _FIELDS:
                raise ValueError(f"{where}.{field}: expected one of cert, key, ca")
        if "key" in files and "cert" not in files:
            raise ValueError(f"{where}: expected cert, too, where there is a key")
        receivers[host] = ReceiverTls(**{field: Path(file) for field, file in files.items()})
    return receivers


def find_receiver(host: str, names: Iterable[str]) -> str | None:
    """Return the name that is for a host (in lower case): its own, otherwise that of its smallest zone."""
    if host in names:
        return host
    zone = host
    while "." in zone:
        zone = zone.partition(".")[2]
        if f"*.{zone}" in names:
            return f"*.{zone}"
    return None

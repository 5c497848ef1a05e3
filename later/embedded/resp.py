"""The few bytes of RESP that are needed before there is a store to speak of: https://valkey.io/topics/protocol/"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from later.embedded.paths import socket_path

_ANSWER_S = 1.0  # how long a store may take over a PING or an INFO


async def ask(data: Path, command: bytes) -> bytes | None:
    """The answer to an inline command, None if there is none in time."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(str(socket_path(data)))
            try:
                writer.write(command + b"\r\n")
                return await _answer(reader)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, ValueError, asyncio.IncompleteReadError):
        return None


async def _answer(reader: asyncio.StreamReader) -> bytes:
    line = (await reader.readuntil(b"\r\n"))[:-2]
    return await reader.readexactly(int(line[1:])) if line.startswith(b"$") else line


async def info(data: Path, section: bytes) -> dict[str, str]:
    """A section of INFO (which answers while the store loads, too); empty if there is no answer."""
    text = (await ask(data, b"INFO " + section) or b"").decode(errors="replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

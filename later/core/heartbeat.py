"""The heartbeat that a process of a daemon writes every two seconds, for the others to read."""

from __future__ import annotations

import msgspec


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one process at `at` (ms of the store's clock). `since` is when it sent its first heartbeat.

    `role` is the command of its daemon, which has so many `processes`. `clock_offset_ms` is how far its machine's clock
    is ahead of the store's. A process that delivers nothing has no slots.
    """

    role: str
    version: str
    host: str
    processes: int
    slots: int
    slots_in_use: int
    since: int
    at: int
    clock_offset_ms: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Heartbeat)


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    return _encoder.encode(heartbeat)


def decode_heartbeat(data: bytes) -> Heartbeat | None:
    """Return the heartbeat, or None if another version has written something else."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return None

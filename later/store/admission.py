"""The daemons' admission limits in the store: a bulk job that writes tasks to it must admit them as the API does.

There is one value for the whole store. The daemon that started last, or that met a new server last, has written it.
"""

from __future__ import annotations

from later.core.admission_limits import AdmissionLimits, changed_limits, decode_limits, encode_limits
from later.core.errors import LaterError
from later.store import scripts
from later.store.codec import raise_errors
from later.store.keys import meta_key
from later.store.schema import Execute


async def write_limits(execute: Execute, prefix: str, limits: AdmissionLimits) -> list[str]:
    """Write the limits of this daemon; return the names of those that were different. Raises StoreDown."""
    command = scripts.WRITE_LIMITS.call([meta_key(prefix)], [encode_limits(limits)])
    before = raise_errors(await execute("open", [command]))[0]
    try:
        return changed_limits(decode_limits(before), limits) if before else []
    except LaterError:  # nobody could use them
        return []


async def read_limits(execute: Execute, prefix: str) -> AdmissionLimits | None:
    """Return the limits that a daemon has written; None if none has.

    Raises:
        LaterError: they cannot be read.
        StoreDown: the store cannot be asked.
    """
    stored = raise_errors(await execute("open", [("HGET", meta_key(prefix), "admission")]))[0]
    return None if stored is None else decode_limits(stored)

"""A process that owns an embedded store until it is killed: `python store_owner.py DIRECTORY [watched|uvloop]`.

`watched`: as on a system whose kernel sends no signal when a parent dies.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from later.embedded import EmbeddedStore, server


async def _own(data: Path) -> None:
    await EmbeddedStore(data).start()
    print("up", flush=True)
    await asyncio.Event().wait()


mode = sys.argv[2] if len(sys.argv) > 2 else ""
if mode == "watched":
    server.__dict__["request_death_signal"] = lambda: None
(uvloop.run if mode == "uvloop" else asyncio.run)(_own(Path(sys.argv[1])))

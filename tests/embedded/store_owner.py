"""A process that owns an embedded store until it is killed: `python store_owner.py DIRECTORY`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from later.embedded import EmbeddedStore


async def _own(data: Path) -> None:
    await EmbeddedStore(data).start()
    print("up", flush=True)
    await asyncio.Event().wait()


asyncio.run(_own(Path(sys.argv[1])))

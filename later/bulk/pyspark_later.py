"""The module that Spark finds by its name, at the top of the wheel: with later installed, `format("later")` is there.

Spark imports all such modules when it looks for any source: where ours cannot work (an older pyspark, no pyarrow), it
must not be in the way of others.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from later.bulk.datasource.source import LaterDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""The module by which Spark finds the data source, at the top of the wheel: its name begins with `pyspark_`.

Spark imports all such modules when it looks for any data source. If this one cannot work (pyspark is too old, pyarrow
is missing), it must not break the others.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from later.bulk.datasource.source import LaterDataSource as DefaultSource

__all__ = ["DefaultSource"]

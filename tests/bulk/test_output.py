"""A directory of a user's is not removed for a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from later.bulk.output import Output
from later.core.errors import LaterError


def test_what_spark_wrote_may_be_replaced(tmp_path: Path) -> None:
    for name in ("_SUCCESS", "part-00000.snappy.parquet", ".part-00000.snappy.parquet.crc"):
        (tmp_path / name).touch()
    Output(str(tmp_path), replaces=True).check()
    Output(f"file:{tmp_path}", replaces=True).check()


def test_a_directory_that_is_not_there_yet_needs_no_look(tmp_path: Path) -> None:
    Output(str(tmp_path / "to"), replaces=True).check()
    Output("s3a://lake/rejects", replaces=True).check()


def test_what_somebody_else_put_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "part-1").touch()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(LaterError, match=r"notes\.txt in it is of no table"):
        Output(str(tmp_path), replaces=True).check()
    with pytest.raises(LaterError, match="is no directory"):
        Output(str(tmp_path / "notes.txt"), replaces=True).check()


def test_what_is_not_to_be_replaced_is_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    Output(str(tmp_path)).check()

"""Tables and sizes."""

from __future__ import annotations

import sys

import pytest

from later.cli import tables
from tests.cases import each_case
from tests.cli.api_stub import Capture


def test_a_table_header_shows_markup_as_text(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    tables.print_number_table(["hour", "[/x]", "[red]y"], [["12:00", "1", "2"]])
    head = capsys.readouterr().out.splitlines()[0]
    assert "[/x]" in head
    assert "[red]y" in head


@each_case(("count", "shown"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"),
                                              (5 * 1024**2, "5.0 MiB"), (3 * 1024**4, "3072.0 GiB")])  # fmt: skip
def test_a_size_is_formatted_in_the_unit_that_fits(count: int, shown: str) -> None:
    assert tables.format_size(count) == shown

"""The report as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from later.bulk.report import plot
from later.bulk.report.counts import DeadCounts, DeadGroup, RejectCounts, RejectGroup
from later.bulk.report.forecast import TopicLimit
from later.bulk.report.plot import DPI, SLATE, TOPIC_COLOURS, draw
from tests.bulk.report.builders import NO_DEAD, build_due_forecast, build_load, build_report

PNG = b"\x89PNG"
HOSTILE = ("_", "$x", "$", "注文", "\x1b[2J\ud800", "a" * 300, "")


@pytest.fixture
def few_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that uses this draws small pictures, in a third of the time."""
    monkeypatch.setattr(plot, "DPI", 30)


@pytest.mark.usefixtures("few_pixels")
def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    topics = [build_load(1000, 1000, topic=name, overdue=9) for name in HOSTILE]
    limits = {name: TopicLimit(rate) for name, rate in zip(HOSTILE, (0.1, 0, 1e6), strict=False)}
    dead = DeadCounts(dict.fromkeys(HOSTILE, 1), tuple(DeadGroup(name, name, 1, None, None) for name in HOSTILE), 3, 4)
    rejected = RejectCounts(tuple(RejectGroup(name, name, 1, name) for name in HOSTILE), 3, 4)

    draw(
        build_report(build_due_forecast(*topics, limits=limits), dead, rejected),
        tmp_path / "a.png",
    )

    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


@pytest.mark.usefixtures("few_pixels")
@pytest.mark.parametrize("hours", [24, 744])
def test_a_day_and_a_month_can_be_drawn(hours: int, tmp_path: Path) -> None:
    due = build_due_forecast(build_load(*([1000] * hours), overdue=9), limits={"order": TopicLimit(1e6)})
    draw(build_report(due), tmp_path / "a.png")

    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


@pytest.mark.usefixtures("few_pixels")
@pytest.mark.parametrize(("rate", "is_drawn"), [(2, True), (3, False)])
def test_a_rate_is_a_line_only_if_its_topic_is_above_it(rate: float, is_drawn: bool, tmp_path: Path) -> None:
    topics = (build_load(9000, 0), build_load(5000, 0, topic="mail"))
    for name, limits in (("with", {"order": TopicLimit(rate)}), ("without", {"order": TopicLimit(0)})):
        draw(build_report(build_due_forecast(*topics, limits=limits)), tmp_path / name)

    assert ((tmp_path / "with").read_bytes() != (tmp_path / "without").read_bytes()) is is_drawn


@pytest.mark.usefixtures("few_pixels")
def test_an_empty_report_can_be_drawn(tmp_path: Path) -> None:
    draw(build_report(dead=NO_DEAD, rejected=RejectCounts((), 0, 0)), tmp_path / "a.png")

    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


def test_one_reason_is_a_thin_bar_that_begins_where_the_hours_begin(tmp_path: Path) -> None:
    rejected = RejectCounts((RejectGroup("callback", "expected an absolute http or https URL", 120, "k"),), 0, 0)

    draw(
        build_report(build_due_forecast(build_load(1000, 1000, 1000), limits={}), rejected=rejected), tmp_path / "a.png"
    )

    pixels = imread(str(tmp_path / "a.png"))
    first, bar = (find_colour(pixels, colour) for colour in (TOPIC_COLOURS[0], SLATE))
    assert bar.bottom - bar.top < DPI / 3
    assert abs(bar.left - first.left) <= 2


class Area(NamedTuple):
    """The rectangle of a colour's pixels."""

    left: int
    top: int
    bottom: int


def find_colour(pixels: Any, colour: str) -> Area:
    """Return where at least half an inch of a row, or of a column, has this colour."""
    same = (abs(pixels[:, :, :3] - to_rgb(colour)) < 0.01).all(axis=2)
    rows = [y for y, count in enumerate(same.sum(axis=1)) if count > DPI / 2]
    columns = [x for x, count in enumerate(same.sum(axis=0)) if count > DPI / 8]
    return Area(columns[0], rows[0], rows[-1])

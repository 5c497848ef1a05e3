"""The report as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from later.bulk.report.counts import DeadCounts, DeadGroup, RejectCounts, RejectGroup
from later.bulk.report.forecast import TopicLimit
from later.bulk.report.plot import draw
from tests.bulk.report.builders import NO_DEAD, build_due_forecast, build_load, build_report, build_window

PNG = b"\x89PNG"
HOSTILE = ("_", "$x", "$", "注文", "\x1b[2J\ud800", "a" * 300, "")


@pytest.mark.parametrize("hours", [24, 744])
def test_any_name_can_be_drawn(hours: int, tmp_path: Path) -> None:
    topics = [build_load(*([1000] * hours), topic=name, overdue=9) for name in HOSTILE]
    limits = {name: TopicLimit(rate) for name, rate in zip(HOSTILE, (0.1, 0, 1e6), strict=False)}
    dead = DeadCounts(dict.fromkeys(HOSTILE, 1), tuple(DeadGroup(name, name, 1, None, None) for name in HOSTILE), 3, 4)
    rejected = RejectCounts(tuple(RejectGroup(name, name, 1, name) for name in HOSTILE), 3, 4)

    draw(
        build_report(build_due_forecast(*topics, limits=limits, window=build_window(hours)), dead, rejected),
        tmp_path / "a.png",
    )

    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(("rate", "is_drawn"), [(2, True), (3, False)])
def test_a_rate_is_a_line_only_if_its_topic_is_above_it(rate: float, is_drawn: bool, tmp_path: Path) -> None:
    topics = (build_load(9000, 0), build_load(5000, 0, topic="mail"))
    for name, limits in (("with", {"order": TopicLimit(rate)}), ("without", {"order": TopicLimit(0)})):
        draw(build_report(build_due_forecast(*topics, limits=limits)), tmp_path / name)

    assert ((tmp_path / "with").read_bytes() != (tmp_path / "without").read_bytes()) is is_drawn


def test_an_empty_report_can_be_drawn(tmp_path: Path) -> None:
    draw(build_report(dead=NO_DEAD, rejected=RejectCounts((), 0, 0)), tmp_path / "a.png")

    assert (tmp_path / "a.png").read_bytes().startswith(PNG)

"""Options that are a time."""

from __future__ import annotations

import pytest

from tests.cli.api_stub import NOW_S, ApiStub, Capture, exit_code_of, tasks_page


@pytest.mark.parametrize(
    ("text", "due", "died"),
    [
        ("10m", NOW_S + 600, NOW_S - 600),
        ("0s", NOW_S, NOW_S),
        ("250ms", NOW_S + 0.25, NOW_S - 0.25),
        ("1800000000.25", 1_800_000_000.25, 1_800_000_000.25),
        ("2027-01-15T08:00:00Z", 1_800_000_000, 1_800_000_000),
        ("2027-01-15T08:00:00.5Z", 1_800_000_000.5, 1_800_000_000.5),
        ("2027-01-15 09:00:00+01:00", 1_800_000_000, 1_800_000_000),
    ],
)
def test_a_time_is_absolute_or_relative(text: str, due: float, died: float, now: float, api: ApiStub) -> None:
    api.replies = [tasks_page(), tasks_page()]
    assert exit_code_of("list", "order", "--due-before", text) == 0
    assert exit_code_of("dead", "list", "order", "--died-after", text) == 0
    assert [request.json[name] for request, name in zip(api.requests, ("due_before", "died_after"), strict=True)] == [
        due,
        died,
    ]


def test_a_due_time_may_be_in_the_past(now: float, api: ApiStub) -> None:
    api.replies = [tasks_page()]
    assert exit_code_of("list", "order", "--due-before", "-10m") == 0
    assert api.requests[0].json["due_before"] == NOW_S - 600


@pytest.mark.parametrize("text", ["", "3600", "1800000000000", "nan", "soon", "s", "2027-01-15", "2027-01-15T08:00:00",
                                  "-1800000000", "9999-99-99T00:00:00Z", "--10m"])  # fmt: skip
def test_a_malformed_time_is_refused(text: str, api: ApiStub, capsys: Capture) -> None:
    assert exit_code_of("list", "order", "--due-before", text) == 2
    assert exit_code_of("dead", "purge", "--topic", "order", "--died-before", text, "--yes") == 2
    due, died = (line for line in capsys.readouterr().err.splitlines() if line.startswith("Error:"))
    assert due.endswith(f": {text}: expected a time, like 2027-01-15T08:00:00Z, 1800000000, 10m or -10m")
    assert died.endswith(f": {text}: expected a time, like 2027-01-15T08:00:00Z, 1800000000 or 2h")
    assert api.requests == []

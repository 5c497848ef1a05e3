"""`/dev/clock`: which moves are taken, and that an ordinary daemon has no such route."""

from __future__ import annotations

import json

import pytest

from later.api.clock_moves import parse_move
from later.core.clock_move import LATEST_MS, ClockMove
from later.core.errors import Refused
from tests.api.api_fixture import ApiFixture
from tests.builders import NOW
from tests.cases import each_case

HOUR_MS = 3_600_000


@each_case(
    ("body", "move"),
    [
        ({"advance": 3600}, ClockMove(HOUR_MS, None)),
        ({"advance": 0}, ClockMove(0, None)),
        ({"advance": 0.0005, "settle": False}, ClockMove(1, None)),
        ({"to": "2027-01-01T00:00:00Z"}, ClockMove(None, 1_798_761_600_000)),
        ({"to": 1_798_761_600, "settle": True}, ClockMove(None, 1_798_761_600_000, 20_000)),
        ({"advance": 3600, "settle": 1.5}, ClockMove(HOUR_MS, None, 1500)),
        ({"advance": 3600, "step": True}, ClockMove(HOUR_MS, None, 20_000, is_stepwise=True)),
        ({"advance": 3600, "step": True, "settle": 60}, ClockMove(HOUR_MS, None, 60_000, is_stepwise=True)),
    ],
)
def test_a_move_says_how_far_and_what_it_waits_for(body: dict[str, object], move: ClockMove) -> None:
    assert parse_move(json.dumps(body).encode()) == move


@each_case(
    ("body", "detail"),
    [
        ({}, "expected either advance or to"),
        ({"advance": 1, "to": 1_798_761_600}, "expected either advance or to"),
        ({"advance": -1}, "advance: expected a number of seconds ≥ 0, got -1"),
        ({"advance": "30d"}, 'advance: expected a number of seconds ≥ 0, got "30d"'),
        (
            {"advance": 1, "settle": 3601},
            "settle: expected true, false or a number of seconds from 0 to 3600, got 3601",
        ),
        ({"advance": 1, "step": True, "settle": False}, "settle: a move with step waits at each stop"),
    ],
)
def test_a_move_that_makes_no_sense_is_refused(body: dict[str, object], detail: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_move(json.dumps(body).encode())
    assert str(refused.value).startswith(detail)


@each_case(
    ("move", "detail"),
    [
        (ClockMove(None, NOW - 1), "to: the clock moves only forward, and it is "),
        (ClockMove(None, LATEST_MS), "to: expected a time before 2100-01-01T00:00:00Z"),
        (ClockMove(LATEST_MS, None), "advance: expected a time before 2100-01-01T00:00:00Z"),
    ],
)
def test_the_clock_moves_neither_back_nor_too_far(move: ClockMove, detail: str) -> None:
    with pytest.raises(Refused) as refused:
        move.target_ms(NOW)
    assert str(refused.value).startswith(detail)


async def test_an_ordinary_daemon_has_no_clock_to_move(api: ApiFixture) -> None:
    assert (await api.http.get("/dev/clock")).status == 404
    assert (await api.http.post("/dev/clock", json={"advance": 1})).status == 404

"""One time for the clocks of all nodes of a cluster: never early by any of them, late by no more than they differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.clock import KEEP_S, Clock, StoreTime
from tests.builders import NOW
from tests.cases import each_case

SECOND_US = 1_000_000


class SimulatedNodes:
    """This machine's clocks and those of nodes, in µs. Time passes only by `wait` and while answers come."""

    def __init__(self, ahead_ms: Mapping[str, int], drifts_ppm: Mapping[str, int] | None = None) -> None:
        self.here_us = 1000 * SECOND_US
        self.nodes_us = {node: Fraction((NOW + ahead) * 1000) for node, ahead in ahead_ms.items()}
        self.drifts_ppm = drifts_ppm or {}
        self.suspended_us = 0
        self.clock = Clock(lambda: self.here_us / SECOND_US, lambda: (self.here_us + self.suspended_us) / SECOND_US)

    def wait(self, us: int) -> None:
        self.here_us += us
        self._pass(us)

    def suspend(self, us: int) -> None:
        """Let time pass, but not for this machine's monotonic clock."""
        self.suspended_us += us
        self._pass(us)

    def _pass(self, us: int) -> None:
        for node in self.nodes_us:
            self.nodes_us[node] += us + Fraction(us * self.drifts_ppm.get(node, 0), SECOND_US)

    def measure(self, node: str, round_trip_us: int = 1000) -> None:
        sent, wall_ahead = self.clock.monotonic(), self.clock.wall_ahead()
        self.wait(round_trip_us // 2)
        answer_us = int(self.nodes_us[node])
        self.wait(round_trip_us - round_trip_us // 2)
        self.clock.observe(answer_us, sent, self.clock.monotonic(), wall_ahead, server=node)

    def measure_round(self, answered: Collection[str], round_trip_us: int = 1000) -> None:
        """Measure these nodes, as the client does each second; the others do not answer."""
        for node in answered:
            self.measure(node, round_trip_us)
        self.clock.forget_silent(answered)

    def contained(self) -> set[str]:
        """Return the nodes whose time is in the known interval, to the microsecond that a node reports."""
        known = self.clock.now()
        return {node for node, us in self.nodes_us.items() if known.low * 1000 - 1 <= us <= known.high * 1000 + 1}

    def spread_ms(self) -> float:
        return float(max(self.nodes_us.values()) - min(self.nodes_us.values())) / 1000

    def width_ms(self) -> float:
        return self.clock.estimate()[1]


class Round(NamedTuple):
    """A round of measurements that these nodes answer, and the time until the next."""

    answered: list[str]
    round_trip_us: int
    wait_us: int


NAMES = ("a", "b", "c")
ROUNDS = st.lists(
    st.builds(
        Round,
        st.lists(st.sampled_from(NAMES), unique=True),
        st.integers(0, 3_000) | st.integers(0, 2 * SECOND_US),
        st.integers(0, SECOND_US) | st.integers(0, 15 * SECOND_US),
    ),
    max_size=20,
)
AHEAD = st.fixed_dictionaries({name: st.integers(-20_000, 20_000) for name in NAMES})
DRIFTS = st.fixed_dictionaries({name: st.integers(-1000, 1000) for name in NAMES})


def nodes_that_differ(ms: int = 300) -> SimulatedNodes:
    """Return nodes of which the second is ahead by `ms`, measured once."""
    nodes = SimulatedNodes({"a": 0, "b": ms})
    nodes.measure_round(["a", "b"])
    return nodes


class TestInterval:
    @given(AHEAD, DRIFTS, ROUNDS)
    def test_it_contains_the_time_of_each_node_that_answered_in_the_last_ten_seconds(
        self, ahead_ms: dict[str, int], drifts_ppm: dict[str, int], rounds: list[Round]
    ) -> None:
        nodes, last_answer_us = SimulatedNodes(ahead_ms, drifts_ppm), dict[str, int]()
        nodes.measure("a")
        last_answer_us["a"] = nodes.here_us
        for answered, round_trip_us, wait_us in rounds:
            nodes.measure_round(answered, round_trip_us)
            last_answer_us |= dict.fromkeys(answered, nodes.here_us)
            for us in (0, wait_us):
                nodes.wait(us)
                recent = {n for n, at in last_answer_us.items() if nodes.here_us - at <= KEEP_S * SECOND_US}
                assert recent <= nodes.contained()

    @given(AHEAD)
    def test_it_is_no_wider_than_the_clocks_differ_and_the_measurements_take(self, ahead_ms: dict[str, int]) -> None:
        nodes = SimulatedNodes(ahead_ms)
        nodes.measure_round(NAMES)
        assert nodes.width_ms() <= nodes.spread_ms() + 2 * 1.2

    def test_nodes_300_ms_apart_make_it_300_ms_wide(self) -> None:
        nodes = nodes_that_differ(300)
        assert nodes.contained() == {"a", "b"}
        assert 300 <= nodes.width_ms() <= 303

    def test_a_single_node_is_known_as_a_single_server_is(self) -> None:
        nodes, server = SimulatedNodes({"a": 0}), SimulatedNodes({"a": 0})
        nodes.measure_round(["a"])
        sent = server.clock.monotonic()
        server.wait(500)
        answer_us = int(server.nodes_us["a"])
        server.wait(500)
        server.clock.observe(answer_us, sent, server.clock.monotonic())
        assert nodes.clock.estimate() == server.clock.estimate()


class TestNodeThatIsAway:
    @each_case(("away_s", "is_counted"), [(1, True), (9, True), (12, False)])
    def test_it_is_counted_for_ten_seconds(self, away_s: int, is_counted: bool) -> None:
        nodes = nodes_that_differ()
        for _ in range(away_s):
            nodes.wait(SECOND_US)
            nodes.measure_round(["a"])
        assert ("b" in nodes.contained()) is is_counted

    def test_it_is_counted_again_once_it_answers(self) -> None:
        nodes = nodes_that_differ()
        for _ in range(20):
            nodes.wait(SECOND_US)
            nodes.measure_round(["a"])
        nodes.measure("b")
        assert nodes.contained() == {"a", "b"}

    def test_an_answer_ends_its_absence(self) -> None:
        nodes = nodes_that_differ()
        for second in range(25):
            nodes.wait(SECOND_US)
            nodes.measure_round(["a", "b"] if second % 8 == 7 else ["a"])
        assert nodes.contained() == {"a", "b"}

    def test_while_none_answers_all_are_counted(self) -> None:
        nodes = nodes_that_differ()
        for _ in range(60):
            nodes.wait(SECOND_US)
            nodes.measure_round([])
        assert nodes.contained() == {"a", "b"}

    def test_a_process_that_was_busy_for_long_forgets_none(self) -> None:
        nodes = nodes_that_differ()
        nodes.wait(60 * SECOND_US)
        nodes.measure_round(["a"])
        assert nodes.contained() == {"a", "b"}


class TestSuspendedMachine:
    async def test_each_node_is_measured_again(self) -> None:
        nodes, measured = nodes_that_differ(), list[str]()
        nodes.suspend(3600 * SECOND_US)

        async def measure() -> None:
            nodes.measure_round(["a", "b"])
            measured.append("round")

        await StoreTime(nodes.clock, measure).now()
        assert measured == ["round"]
        assert nodes.contained() == {"a", "b"}

    def test_the_clock_is_not_steady_before_each_was_measured(self) -> None:
        nodes = nodes_that_differ()
        nodes.suspend(3600 * SECOND_US)
        nodes.measure("a")
        assert not nodes.clock.is_steady()
        nodes.measure("b")
        assert nodes.clock.is_steady()


class TestSpread:
    @each_case("ms", [0, 300, 20_000])
    def test_it_is_how_far_the_clocks_differ(self, ms: int) -> None:
        assert nodes_that_differ(ms).clock.spread_s() == pytest.approx(ms / 1000, abs=0.003)

    def test_it_is_0_before_a_measurement_and_for_a_single_node(self) -> None:
        nodes = SimulatedNodes({"a": 0})
        before = nodes.clock.spread_s()
        nodes.measure_round(["a"])
        assert (before, nodes.clock.spread_s()) == (0, 0)


class TestFailover:
    @each_case("ahead_ms", [20_000, -20_000, 0])
    def test_the_difference_of_the_new_primary_is_known_while_the_one_before_is(self, ahead_ms: int) -> None:
        nodes = SimulatedNodes({"a": 0, "b": ahead_ms})
        nodes.measure_round(["a"])
        nodes.wait(3 * SECOND_US)
        nodes.measure_round(["b"])
        assert nodes.clock.difference_s("b", "a") == pytest.approx(ahead_ms / 1000, abs=0.01)
        assert nodes.clock.difference_s("c", "a") is None

    @each_case("ahead_ms", [20_000, -20_000, 0])
    def test_the_jump_behind_a_fixed_address_is_told_once(self, ahead_ms: int) -> None:
        nodes = SimulatedNodes({"a": 0, "b": ahead_ms})
        clock = nodes.clock
        sent = clock.monotonic()
        clock.observe(int(nodes.nodes_us["a"]), sent, sent)
        asked_before = clock.monotonic()
        nodes.wait(2 * SECOND_US)
        clock.distrust()
        at = clock.monotonic()
        jumps = [clock.jump_s(int(nodes.nodes_us["b"]), sent_at, at) for sent_at in (asked_before, at, at)]
        assert jumps == [None, pytest.approx(ahead_ms / 1000, abs=0.01), None]

    def test_a_primary_that_is_the_first_makes_no_jump(self) -> None:
        clock = SimulatedNodes({}).clock
        clock.distrust()
        assert clock.jump_s(NOW * 1000, 1000, 1000) is None


def test_moving_the_clock_moves_every_node() -> None:
    nodes = nodes_that_differ()
    before = nodes.clock.now()
    nodes.clock.set_moved(60_000)
    assert nodes.clock.now() == before.__class__(before.low + 60_000, before.high + 60_000)

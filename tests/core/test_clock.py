"""The known interval contains the store's true time, whatever the network and the machine do."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.core.clock import Clock, Interval, StoreTime, warn_of_clock
from later.core.errors import StoreDown
from tests.builders import NOW
from tests.cases import each_case

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US


class SimulatedClocks:
    """This machine's two clocks and the store's, in µs. Time passes only by `wait`."""

    def __init__(self) -> None:
        self.monotonic_us = 1000 * SECOND_US
        self.wall_us = NOW * 1000
        self.store_us = Fraction(NOW * 1000)
        self.drift_ppm = 0
        self.clock = Clock(lambda: self.monotonic_us / SECOND_US, lambda: self.wall_us / SECOND_US)

    def wait(self, us: int) -> None:
        self.monotonic_us += us
        self.suspend(us)

    def suspend(self, us: int) -> None:
        """Let time pass, but not for this machine's monotonic clock."""
        self.wall_us += us
        self.store_us += us + Fraction(us * self.drift_ppm, 1_000_000)

    def measure(self, to_store_us: int = 500, from_store_us: int = 500, asleep_us: int = 0) -> None:
        """Measure the store's time. The machine is suspended for `asleep_us` while the answer comes."""
        sent, wall_ahead = self.clock.monotonic(), self.clock.wall_ahead()
        self.wait(to_store_us)
        answer_us = int(self.store_us)
        self.wait(from_store_us)
        self.suspend(asleep_us)
        self.clock.observe(answer_us, sent, self.clock.monotonic(), wall_ahead)

    def interval(self) -> Interval:
        return self.clock.now()

    def width(self) -> int:
        return self.interval().high - self.interval().low

    def contains_true_time(self) -> bool:
        """Return True if the known interval contains the store's time, to the microsecond that the store reports."""
        known = self.interval()
        return known.low * 1000 - 1 <= self.store_us <= known.high * 1000 + 1


@pytest.fixture
def clocks() -> SimulatedClocks:
    """Simulated clocks, with the store's measured once."""
    clocks = SimulatedClocks()
    clocks.measure()
    return clocks


class Step(NamedTuple):
    """A measurement at this drift, and the time after it."""

    drift_ppm: int
    wait_us: int
    to_store_us: int
    from_store_us: int
    asleep_us: int


ONE_WAY_TIMES = st.integers(0, 2 * SECOND_US) | st.integers(0, 5_000)
STEPS = st.lists(
    st.builds(
        Step,
        drift_ppm=st.integers(-1000, 1000),
        wait_us=st.integers(0, HOUR_US) | st.integers(0, 2 * SECOND_US),
        to_store_us=ONE_WAY_TIMES,
        from_store_us=ONE_WAY_TIMES,
        asleep_us=st.just(0) | st.integers(60_000, HOUR_US),
    ),
    min_size=1,
    max_size=12,
)


class TestBeforeTheFirstMeasurement:
    def test_the_time_is_unknown(self) -> None:
        with pytest.raises(StoreDown):
            SimulatedClocks().interval()

    def test_the_clock_is_not_steady(self) -> None:
        assert not SimulatedClocks().clock.is_steady()


class TestInterval:
    @given(STEPS)
    def test_it_contains_the_true_time(self, steps: list[Step]) -> None:
        clocks, contained = SimulatedClocks(), []
        for step in steps:
            clocks.drift_ppm = step.drift_ppm
            clocks.measure(step.to_store_us, step.from_store_us, step.asleep_us)
            contained.append(clocks.contains_true_time())
            clocks.wait(step.wait_us)
            contained.append(clocks.contains_true_time())
        assert all(contained)

    @each_case("drift_ppm", [-100, 0, 100])
    def test_it_contains_the_true_time_a_day_after_a_measurement(self, clocks: SimulatedClocks, drift_ppm: int) -> None:
        clocks.drift_ppm = drift_ppm
        clocks.wait(24 * HOUR_US)
        assert clocks.contains_true_time()

    @each_case("drift_ppm", [-1000, -500, 500, 1000])
    def test_it_contains_the_true_time_after_a_slow_answer(self, drift_ppm: int) -> None:
        """The clocks have moved apart while the answer came."""
        clocks = SimulatedClocks()
        clocks.drift_ppm = drift_ppm
        clocks.measure(to_store_us=0, from_store_us=4 * SECOND_US)
        assert clocks.contains_true_time()

    def test_it_is_little_wider_than_the_round_trip(self, clocks: SimulatedClocks) -> None:
        assert 1 <= clocks.width() <= 1 + 1 + 2

    def test_before_rounding_it_is_a_tenth_of_a_ms_wider_than_the_round_trip(self, clocks: SimulatedClocks) -> None:
        _, width = clocks.clock.estimate()
        assert width == pytest.approx(1.1, abs=0.01)

    def test_it_moves_on_with_the_monotonic_clock(self, clocks: SimulatedClocks) -> None:
        before = clocks.interval()
        clocks.wait(10 * SECOND_US)
        assert 10_000 - 11 <= clocks.interval().low - before.low <= 10_000

    def test_a_slow_measurement_does_not_widen_it(self, clocks: SimulatedClocks) -> None:
        clocks.wait(SECOND_US)
        clocks.measure(to_store_us=0, from_store_us=1_500_000)
        assert clocks.width() <= 10

    def test_a_fast_measurement_narrows_it(self) -> None:
        clocks = SimulatedClocks()
        clocks.measure(to_store_us=0, from_store_us=1_500_000)
        clocks.measure(to_store_us=0, from_store_us=1_000)
        assert clocks.width() <= 4

    def test_a_fresh_measurement_replaces_an_old_one(self, clocks: SimulatedClocks) -> None:
        clocks.wait(HOUR_US)
        clocks.measure()
        assert clocks.width() <= 4


class TestWallClock:
    @each_case("jump_us", [-HOUR_US, HOUR_US])
    def test_a_jump_of_the_wall_clock_does_not_change_the_time(self, clocks: SimulatedClocks, jump_us: int) -> None:
        before = clocks.interval()
        clocks.wall_us += jump_us
        assert clocks.interval() == before

    @pytest.mark.parametrize(
        ("jump_us", "steady"),
        [
            (0, True),
            (40_000, True),
            (-40_000, True),
            (60_000, False),
            (-60_000, False),
            (HOUR_US, False),
            (-HOUR_US, False),
        ],
    )
    def test_a_large_jump_of_the_wall_clock_makes_the_clock_unsteady(
        self, clocks: SimulatedClocks, jump_us: int, steady: bool
    ) -> None:
        clocks.wall_us += jump_us
        assert clocks.clock.is_steady() is steady

    def test_after_a_jump_the_clock_is_steady_once_it_is_measured(self, clocks: SimulatedClocks) -> None:
        clocks.wall_us += HOUR_US
        clocks.measure()
        assert clocks.clock.is_steady()

    def test_a_clock_that_only_waits_stays_steady(self, clocks: SimulatedClocks) -> None:
        clocks.wait(24 * HOUR_US)
        assert clocks.clock.is_steady()


class TestSuspendedMachine:
    def test_the_clock_is_not_steady_when_it_wakes_up(self, clocks: SimulatedClocks) -> None:
        clocks.suspend(HOUR_US)
        assert not clocks.clock.is_steady()

    def test_the_clock_is_steady_once_it_is_measured(self, clocks: SimulatedClocks) -> None:
        clocks.suspend(HOUR_US)
        clocks.measure()
        assert clocks.clock.is_steady()

    @each_case("asleep_us", [60_000, SECOND_US, HOUR_US])
    def test_the_time_is_right_once_it_is_measured(self, clocks: SimulatedClocks, asleep_us: int) -> None:
        clocks.suspend(asleep_us)
        clocks.measure(to_store_us=0, from_store_us=1_500_000)
        assert clocks.contains_true_time()

    @each_case("asleep_us", [60_000, SECOND_US, HOUR_US])
    def test_the_time_is_not_early_if_it_was_suspended_while_the_answer_came(
        self, clocks: SimulatedClocks, asleep_us: int
    ) -> None:
        clocks.wait(10 * SECOND_US)
        clocks.measure(asleep_us=asleep_us)
        assert clocks.contains_true_time()

    async def test_the_time_is_measured_again_if_it_was_suspended_while_the_answer_came(self) -> None:
        clocks, asleep_us = SimulatedClocks(), [HOUR_US, 0]

        async def measure() -> None:
            clocks.measure(asleep_us=asleep_us.pop(0))

        now = await StoreTime(clocks.clock, measure).now()
        assert (asleep_us, now.high - now.low <= 4, clocks.contains_true_time()) == ([], True, True)

    async def test_the_time_is_taken_as_it_is_known_if_that_happens_each_time(self) -> None:
        clocks = SimulatedClocks()

        async def measure() -> None:
            clocks.measure(asleep_us=SECOND_US)

        await StoreTime(clocks.clock, measure).now()
        assert clocks.contains_true_time()


class TestStoreThatJumps:
    @each_case("jump_us", [-HOUR_US, -SECOND_US, -10_000, 10_000, SECOND_US, HOUR_US])
    def test_its_new_time_is_taken_over_at_the_next_measurement(self, clocks: SimulatedClocks, jump_us: int) -> None:
        clocks.store_us += jump_us
        clocks.measure()
        assert clocks.contains_true_time()

    @each_case("jump_us", [-HOUR_US, HOUR_US])
    def test_its_new_time_is_taken_over_from_a_slow_answer_too(self, clocks: SimulatedClocks, jump_us: int) -> None:
        clocks.store_us += jump_us
        clocks.measure(to_store_us=750_000, from_store_us=750_000)
        assert clocks.contains_true_time()


class TestTheWallClock:
    def test_a_store_that_is_a_minute_from_this_machine_is_warned_of(self, clocks: SimulatedClocks) -> None:
        for ahead_s, said in ((0, None), (59, None), (-59, None), (62, "62 s ahead of"), (-3600, "3600 s behind")):
            clocks.wall_us = NOW * 1000 - ahead_s * SECOND_US
            clocks.clock.observe(NOW * 1000, clocks.monotonic_us / SECOND_US, clocks.monotonic_us / SECOND_US)
            warning = warn_of_clock(clocks.clock)
            assert warning is None if said is None else said in str(warning), ahead_s

    def test_a_store_that_was_never_asked_is_not(self, clocks: SimulatedClocks) -> None:
        assert warn_of_clock(clocks.clock) is None

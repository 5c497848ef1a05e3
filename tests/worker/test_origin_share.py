"""Fair shares within a topic: no origin takes the slots that others need, and none is remembered for long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from later.core.origin import Origin
from later.worker.fair_share import FairShare, share
from later.worker.new_origins import WELL_MS
from later.worker.origin_share import (
    FORGET_MS,
    MAX_ENDED_PER_PROBE,
    MAX_PAUSE_MS,
    MIN_PAUSE_MS,
    MIN_PROBE,
    NEW_MS,
    PROBE_EVERY_MS,
    PUT_BACK_GRID_MS,
    OriginShare,
)
from tests.builders import NOW

TIMEOUT_MS = 15_000
SLOTS = st.integers(4, 300)
WELL = Origin("http", "well.example", 80)


def an_origin(number: int) -> Origin:
    return Origin("http", f"host-{number}.example", 80)


class Slots:
    """A worker's slots, all of them for one topic."""

    def __init__(self, slots: int = 256) -> None:
        self.topics = FairShare(slots)
        self.origins = OriginShare()

    @property
    def open(self) -> int:
        return self.topics.share("order")

    def begin(self, origin: Origin, now: int = NOW) -> bool:
        """Begin a call, if the rule admits it."""
        self.origins.claim_limit("order", self.open, now)
        if not self.origins.admission("order", now, TIMEOUT_MS).admit(origin):
            return False
        self.topics.acquire("order")
        self.origins.acquire("order", origin, now)
        return True

    def fill(self, *origins: Origin, now: int = NOW) -> int:
        """Begin calls to these origins in turn until none may begin; return how many."""
        begun = 0
        while some := sum(self.begin(origin, now) for origin in origins):
            begun += some
        return begun

    def end(self, origin: Origin, began_at: int, now: int) -> None:
        self.topics.release("order")
        self.origins.end_call("order", origin, now - began_at, now)
        self.origins.release("order", origin, now)

    def judge(self, *origins: Origin, now: int) -> list[int]:
        """Begin or put back these tasks of one claim; return when those that were put back are due again."""
        self.origins.claim_limit("order", self.open, now)
        admission = self.origins.admission("order", now, TIMEOUT_MS)
        times = []
        for origin in origins:
            if admission.admit(origin):
                self.topics.acquire("order")
                self.origins.acquire("order", origin, now)
            else:
                times.append(admission.put_back_at(origin))
        admission.end()
        return times


class TestTheRule:
    @given(slots=SLOTS)
    def test_an_origin_holds_at_most_three_times_the_slots_that_are_free(self, slots: int) -> None:
        worker = Slots(slots)
        in_use = worker.fill(WELL)
        assert in_use - 1 <= 3 * (worker.open + 1), "so it was when its last call began"

    def test_a_lone_origin_gets_nine_sixteenths_of_the_slots(self) -> None:
        assert Slots(256).fill(WELL) == 144

    @given(slots=st.integers(1, 1000))
    def test_an_idle_worker_always_has_a_slot_for_an_origin(self, slots: int) -> None:
        assert Slots(slots).begin(WELL)

    @given(slots=st.integers(64, 300), hanging=st.integers(1, 40))
    def test_origins_that_hang_leave_slots_to_another_one(self, slots: int, hanging: int) -> None:
        worker = Slots(slots)
        origins = [an_origin(number) for number in range(hanging)]
        for now in range(NOW, NOW + 4 * NEW_MS, NEW_MS):
            worker.judge(*origins * slots, now=now)
        assert worker.begin(WELL, now + NEW_MS)

    def test_a_thousand_new_origins_that_hang_leave_slots_to_one_that_was_well(self) -> None:
        worker = Slots(256)
        worker.begin(WELL)
        worker.end(WELL, NOW, NOW + 5)
        hanging = [an_origin(number) for number in range(1000)]
        for now in range(NOW + 5, NOW + 2000, NEW_MS):
            worker.judge(*hanging, now=now)
            began = now
            while worker.origins.in_use("order", WELL) < 5:
                assert worker.begin(WELL, now)
            while worker.origins.in_use("order", WELL):
                worker.end(WELL, began, now + 5)
        assert worker.begin(WELL, now + WELL_MS)
        assert not worker.begin(an_origin(999), now)

    def test_tasks_of_new_origins_that_wait_for_slow_ones_are_passed_over_fast(self) -> None:
        worker = Slots(256)
        hanging = [an_origin(number) for number in range(1000)]
        for now in range(NOW, NOW + 1000, NEW_MS):
            worker.judge(*hanging, now=now)
        wanted = worker.origins.claim_limit("order", worker.open, now + NEW_MS)
        assert wanted > 500
        assert worker.origins.probes("order")

    def test_a_new_origin_is_called_within_half_a_second_beside_a_thousand_that_hang(self) -> None:
        worker = Slots(256)
        hanging = [an_origin(number) for number in range(1000)]
        under_way: list[tuple[int, Origin]] = []
        waits: list[int] = []
        came_at = NOW + 1000
        for now in range(NOW, NOW + 3 * TIMEOUT_MS // 2, NEW_MS):
            for began, origin in [call for call in under_way if call[0] + TIMEOUT_MS <= now]:
                worker.end(origin, began, now)
                under_way.remove((began, origin))
            before = {origin: worker.origins.in_use("order", origin) for origin in hanging}
            worker.judge(*hanging, now=now)
            for origin in hanging:
                under_way += [(now, origin)] * (worker.origins.in_use("order", origin) - before[origin])
            if now >= came_at:
                well = Origin("http", f"well-{len(waits)}.example", 80)
                if worker.judge(well, now=now) == []:
                    worker.end(well, now, now + 5)
                    waits.append(now - came_at)
                    came_at = now + 1000
        assert len(waits) > 15
        assert max(waits) < 500

    def test_an_origin_whose_calls_timed_out_is_no_new_one_when_it_is_called_again(self) -> None:
        worker = Slots(256)
        hanging = [an_origin(number) for number in range(1000)]
        worker.begin(hanging[0])
        worker.end(hanging[0], NOW, NOW + TIMEOUT_MS)
        for now in (NOW + TIMEOUT_MS, NOW + TIMEOUT_MS + NEW_MS):
            worker.judge(*hanging[1:], now=now)
        assert not worker.begin(hanging[0], now)
        assert worker.begin(WELL, now)

    def test_origins_that_hang_get_no_more_slots_after_their_calls_timed_out(self) -> None:
        worker = Slots(256)
        origins = [an_origin(number) for number in range(40)]
        for now in (NOW, NOW + NEW_MS):
            worker.judge(*origins * 250, now=now)
        most = worker.topics.total_in_use
        for _ in range(5):
            began, now = now, now + 3_000
            for tick in range(began + 200, now, 200):  # their tasks come due again and again, while they hang
                worker.judge(*origins * 10, now=tick)
            for origin in origins:
                while worker.origins.in_use("order", origin):
                    worker.end(origin, began, now)
            worker.judge(*origins * 250, now=now)
            assert worker.topics.total_in_use <= most
            assert worker.begin(WELL, now)
            worker.end(WELL, now, now + 1)

    def test_an_origin_that_answers_is_not_limited_by_others_that_hang(self) -> None:
        worker = Slots(256)
        worker.fill(*(an_origin(number) for number in range(40)))
        now = NOW + NEW_MS
        worker.begin(WELL, now)
        worker.begin(WELL, now)
        worker.end(WELL, now, now + 5)
        assert worker.fill(WELL, now=now + NEW_MS + 10) >= 35

    @given(st.data())
    def test_what_is_claimed_without_a_probe_may_always_begin(self, data: st.DataObject) -> None:
        worker = Slots(data.draw(st.integers(1, 300)))
        for _ in range(data.draw(st.integers(1, 5))):
            for origin in data.draw(st.lists(st.builds(an_origin, st.integers(0, 3)))):
                worker.begin(origin)
        count = worker.origins.claim_limit("order", worker.open, NOW)
        origins = data.draw(st.lists(st.builds(an_origin, st.integers(0, 3)), min_size=count, max_size=count))
        assert worker.judge(*origins, now=NOW) == []


class TestClaims:
    def test_a_claim_takes_as_many_tasks_as_one_origin_may(self) -> None:
        worker = Slots(256)
        assert worker.origins.claim_limit("order", worker.open, NOW) == 144
        worker.fill(WELL)
        assert worker.origins.claim_limit("order", worker.open, NOW + 1) == 0
        for _ in range(10):
            worker.end(WELL, NOW, NOW + 2)
        assert worker.origins.claim_limit("order", worker.open, NOW + 2) == 10

    def test_tasks_behind_a_full_origin_that_ends_calls_are_looked_for_ten_times_a_second(self) -> None:
        worker = Slots(256)
        worker.fill(WELL)
        now = NOW + PROBE_EVERY_MS
        worker.end(WELL, NOW, now)
        assert worker.origins.closed_until("order", worker.open, NOW + 1) == 0
        assert worker.origins.claim_limit("order", worker.open, now) == 1 + MIN_PROBE
        worker.judge(*[WELL] * (1 + MIN_PROBE), now=now)
        assert worker.origins.claim_limit("order", worker.open, now) == 0
        assert worker.origins.closed_until("order", worker.open, now) == now + PROBE_EVERY_MS

    def test_no_more_is_looked_for_behind_a_full_origin_that_ends_calls_because_a_few_were_put_back(self) -> None:
        worker = Slots(256)
        worker.fill(WELL)
        now = NOW + PROBE_EVERY_MS
        worker.end(WELL, NOW, now)
        assert len(worker.judge(*[WELL] * 4, now=now)) == 3
        assert worker.origins.claim_limit("order", worker.open, now + PROBE_EVERY_MS) == MIN_PROBE

    def test_nothing_is_looked_for_behind_a_full_origin_that_ends_calls_faster_than_that_would_go(self) -> None:
        worker = Slots(256)
        worker.fill(WELL)
        for _ in range(MAX_ENDED_PER_PROBE * MIN_PROBE + 1):
            worker.end(WELL, NOW, NOW + 50)
            worker.begin(WELL, NOW + 50)
        now = NOW + PROBE_EVERY_MS
        assert worker.origins.claim_limit("order", worker.open, now) == 0
        assert worker.origins.closed_until("order", worker.open, now) == now + PROBE_EVERY_MS
        now += PROBE_EVERY_MS
        worker.end(WELL, NOW, now - 1)
        assert worker.origins.claim_limit("order", worker.open, now) == 1 + MIN_PROBE

    def test_an_origin_does_not_stall_while_its_answered_calls_are_settled(self) -> None:
        worker = Slots(256)
        worker.fill(WELL)
        for _ in range(144):
            worker.origins.end_call("order", WELL, 5, NOW + 5)
        assert worker.origins.claim_limit("order", worker.open, NOW + 10 * NEW_MS) == MIN_PROBE

    def test_tasks_of_an_origin_that_hangs_are_passed_over_at_once(self) -> None:
        worker = Slots(256)
        worker.fill(WELL)
        now, claims, passed = NOW + PROBE_EVERY_MS, 0, 0
        while passed < 10_000:
            count = worker.origins.claim_limit("order", worker.open, now)
            passed += len(worker.judge(*[WELL] * count, now=now))
            claims += 1
        assert claims <= 15

    def test_tasks_of_an_origin_that_hangs_do_not_hide_those_of_one_that_is_full_and_ends_calls(self) -> None:
        worker = Slots(256)
        hangs = an_origin(1)
        worker.fill(hangs)
        now = NOW + NEW_MS
        worker.begin(WELL, now)
        worker.end(WELL, now, now + 1)
        worker.fill(WELL, now=now + 1)
        passed = 0
        while now < NOW + 1100:
            now = max(now + 10, worker.origins.closed_until("order", worker.open, now))
            count = worker.origins.claim_limit("order", worker.open, now)
            mix = [WELL if n % 20 == 0 else hangs for n in range(count)]
            worker.judge(*mix, now=now)
            passed += count
            for _ in range(worker.origins.in_use("order", WELL)):
                worker.end(WELL, now - 9, now)
            worker.fill(WELL, now=now)
        assert passed > 3000, "they come due at 1,000 a second"


class TestTasksThatWait:
    def test_the_pause_doubles_from_100_ms_to_10_s_while_the_origin_stays_full(self) -> None:
        worker = Slots(256)
        worker.fill(WELL)
        pauses, now = [], NOW + MIN_PAUSE_MS
        for _ in range(9):
            [at] = worker.judge(WELL, now=now)
            pauses.append(at - now)
            now = at
        assert pauses == [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]

    def test_ten_thousand_tasks_of_an_origin_do_not_come_due_at_once(self) -> None:
        worker = Slots(256)
        worker.fill(WELL)
        now = NOW + NEW_MS
        worker.judge(WELL, now=now)
        now += MAX_PAUSE_MS
        times = worker.judge(*[WELL] * 10_000, now=now)
        assert times == sorted(times)
        assert now + MAX_PAUSE_MS <= times[0]
        assert times[-1] <= now + 2 * MAX_PAUSE_MS + 2 * MIN_PAUSE_MS
        assert max(times.count(at) for at in set(times)) <= PUT_BACK_GRID_MS + 1

    def test_ten_thousand_tasks_wait_no_longer_for_an_origin_than_it_hiccuped(self) -> None:
        worker = Slots(256)
        worker.fill(WELL)
        now = NOW + 200
        times = worker.judge(*[WELL] * 10_000, now=now)
        assert max(times) <= now + 2 * 200 + PUT_BACK_GRID_MS

    def test_forty_origins_share_the_line(self) -> None:
        worker = Slots(256)
        origins = [an_origin(number) for number in range(40)]
        worker.fill(*origins)
        now = NOW + MAX_PAUSE_MS
        times = worker.judge(*(origins * 250), now=now)
        later = [at for at in times if at > now + MAX_PAUSE_MS + MIN_PAUSE_MS]
        assert max(later.count(at) for at in set(later)) <= 3 * PUT_BACK_GRID_MS
        assert max(times) <= now + 2 * MAX_PAUSE_MS + 2 * MIN_PAUSE_MS


class TestMemory:
    def test_an_origin_without_calls_and_waiting_tasks_is_forgotten(self) -> None:
        worker = Slots(256)
        for number in range(1000):
            origin = an_origin(number)
            worker.begin(origin, NOW + number)
            worker.end(origin, NOW + number, NOW + number)
        assert len(worker.origins) == 0

    def test_an_origin_is_forgotten_soon_after_its_last_task_came_due_again(self) -> None:
        worker = Slots(4)
        worker.fill(*(an_origin(number) for number in range(10)))
        times = worker.judge(*(an_origin(number) for number in range(1000)), now=NOW)
        assert len(worker.origins) == 1000
        worker.origins.forget_idle(max(times) + FORGET_MS)
        assert len(worker.origins) == worker.topics.total_in_use


@given(free=st.integers(0, 5000), fullest=st.integers(0, 5000), in_use=st.integers(0, 5000))
def test_an_origin_that_holds_less_may_take_at_least_as_much(free: int, fullest: int, in_use: int) -> None:
    assert share(free, min(in_use, fullest)) >= share(free, fullest)

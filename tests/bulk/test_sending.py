"""BatchSender through a transport: again where that is safe, once where it is not, and never for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.bulk.input.payload import Payloads, Reject
from later.bulk.sending import JITTER, BatchSender, RetryPolicy, Sent, parts
from later.bulk.transport.api import ApiTransport
from later.client.http import MAX_LINE_BYTES, CallFailed, Client
from later.client.transport import Counts, TaskStatus, Unavailable
from later.core.errors import LaterError
from tests.bulk.answers import Answer, Asked, Told, batch, problem, taken, told, wrong

AWAY = wrong(503, "this part of the store is away")
BAD = wrong(400, "delay: expected a number of seconds ≥ 0, got -5", field="delay")


@pytest.fixture
def pauses() -> list[float]:
    """Pauses that were asked for; none is made."""
    return []


def lines(count: int) -> Payloads:
    ids = [f"j:{number}" for number in range(count)]
    bodies = [b'{"id":"%s","topic":"t"}' % id.encode() for id in ids]
    return Payloads(bodies, ids, [str(number).encode() for number in range(count)])


def batches(at: Told, pauses: list[float], batch: int = 1000, retries: int = 3) -> BatchSender:
    return BatchSender(
        ApiTransport(Client(at.url, 5, lambda: 0.0), "j"), RetryPolicy(retries, pauses.append), batch=batch
    )


def each(*results: dict[str, Any]) -> Answer:
    """A 200 with these results, for whatever was asked."""
    return Answer(200, batch(*results))


def made(id: str, created: bool = True) -> dict[str, Any]:
    return {"id": id, "created": created}


class TestCreating:
    def test_lines_go_in_batches(self, pauses: list[float]) -> None:
        with told(taken) as api:
            sent = list(batches(api, pauses, batch=2).create(lines(5)))
        assert [(asked.path, asked.ids) for asked in api.asked] == [
            ("/create/batch?job=j", ids) for ids in (["j:0", "j:1"], ["j:2", "j:3"], ["j:4"])
        ]
        assert [part.created for part in sent] == [2, 2, 1]

    def test_no_lines_are_no_call(self, pauses: list[float]) -> None:
        with told(taken) as api:
            assert list(batches(api, pauses).create(lines(0))) == []
        assert api.asked == []

    def test_what_was_refused_is_told_of_in_order_and_not_sent_again(self, pauses: list[float]) -> None:
        other = wrong(413, "expected a body of at most 9 bytes")
        with told(each(BAD, made("j:1"), other, made("j:3", created=False))) as api:
            (sent,) = batches(api, pauses).create(lines(4))
        row = '{"topic":"t"}'
        assert sent == Sent(
            1,
            1,
            [
                Reject("0", row, "delay", "delay: expected a number of seconds ≥ 0, got -5"),
                Reject("2", row, None, "expected a body of at most 9 bytes"),
            ],
        )
        assert (len(api.asked), pauses) == (1, [])

    def test_items_that_failed_are_sent_again_alone(self, pauses: list[float]) -> None:
        first = each(AWAY, made("j:1"), BAD, AWAY, made("j:4", created=False))
        with told(first, each(made("j:0"), AWAY), each(BAD)) as api:
            (sent,) = batches(api, pauses).create(lines(5))
        assert [asked.ids for asked in api.asked[1:]] == [["j:0", "j:3"], ["j:3"]]
        assert (sent.created, sent.existing, [reject.key for reject in sent.rejects]) == (2, 1, ["2", "3"])
        assert len(pauses) == 2

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_a_batch_that_was_turned_away_is_sent_again(self, status: int, pauses: list[float]) -> None:
        with told(problem(status), taken) as api:
            (sent,) = batches(api, pauses).create(lines(3))
        assert (sent.created, len(api.asked), len(pauses)) == (3, 2, 1)
        assert api.asked[0] == api.asked[1]

    @pytest.mark.parametrize("lost", [Answer(200, batch(), cut=True), Answer(200, b"x", cut=True)])
    def test_so_is_one_whose_answer_was_cut(self, lost: Answer, pauses: list[float]) -> None:
        with told(lost, each(made("j:0", created=False))) as api:
            (sent,) = batches(api, pauses).create(lines(1))
        assert (sent.existing, len(api.asked)) == (1, 2)

    @pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405, 501])
    def test_what_will_not_pass_ends_it_at_once_with_the_reason(self, status: int, pauses: list[float]) -> None:
        with told(problem(status, "no use")) as api, pytest.raises(LaterError, match=r"^no use$"):
            list(batches(api, pauses).create(lines(3)))
        assert (len(api.asked), pauses) == (1, [])

    def test_what_follows_a_batch_that_cannot_be_sent_is_not_tried(self, pauses: list[float]) -> None:
        with told(taken, problem(400)) as api, pytest.raises(LaterError):
            list(batches(api, pauses, batch=1).create(lines(3)))
        assert len(api.asked) == 2

    def test_judging_creates_nothing_and_counts_into_no_job(self, pauses: list[float]) -> None:
        judged = batch(made("j:0", created=False), BAD) | {"existing": 0}
        with told(Answer(200, judged)) as api:
            (sent,) = batches(api, pauses).judge(lines(2))
        assert [asked.path for asked in api.asked] == ["/create/batch?dry_run=true"]
        assert (sent.created, sent.existing, len(sent.rejects)) == (0, 0, 1)


class TestPatience:
    def test_the_last_try_says_why_and_how_many_there_were(self, pauses: list[float]) -> None:
        with told(problem(503, "the store's memory is full")) as api, pytest.raises(LaterError) as failed:
            list(batches(api, pauses, retries=3).create(lines(1)))
        assert str(failed.value) == "the store's memory is full (tried 4 times)"
        assert not isinstance(failed.value, Unavailable)
        assert (len(api.asked), len(pauses)) == (4, 3)

    def test_one_that_is_not_to_be_repeated_is_not(self, pauses: list[float]) -> None:
        with told(problem(503, "away")) as api, pytest.raises(LaterError, match=r"^away$"):
            list(batches(api, pauses, retries=0).create(lines(1)))
        assert (len(api.asked), pauses) == (1, [])

    def test_items_that_fail_for_ever_end_it_too(self, pauses: list[float]) -> None:
        def failing(asked: Asked) -> Answer:
            return each(*[AWAY] * len(asked.ids))

        with (
            told(failing) as api,
            pytest.raises(LaterError, match=r"^this part of the store is away \(tried 3 times\)$"),
        ):
            list(batches(api, pauses, retries=2).create(lines(3)))
        assert [len(asked.ids) for asked in api.asked] == [3, 3, 3]

    def test_pauses_double_and_are_a_little_longer_by_chance(self, pauses: list[float]) -> None:
        with told(problem(503)) as api, pytest.raises(LaterError):
            list(batches(api, pauses, retries=8).create(lines(1)))
        least = [1, 2, 4, 8, 16, 32, 60, 60]
        assert all(low <= pause <= low * (1 + JITTER) for low, pause in zip(least, pauses, strict=True))

    @pytest.mark.parametrize(("retry_after", "least"), [("0", 0), ("7", 7), ("Thu, 01 Jan 1970 00:00:20 GMT", 20)])
    def test_a_pause_that_was_asked_for_is_made(self, retry_after: str, least: float, pauses: list[float]) -> None:
        with told(problem(503, retry_after=retry_after), taken) as api:
            list(batches(api, pauses).create(lines(1)))
        assert least <= pauses[0] <= least * (1 + JITTER)

    def test_nobody_there_is_tried_again_too(self, pauses: list[float]) -> None:
        with told(taken) as api:
            nowhere = api
        with pytest.raises(LaterError, match=r"did not answer: Connection refused \(tried 2 times\)$"):
            list(batches(nowhere, pauses, retries=1).create(lines(1)))


class TestWhatIsTooLarge:
    def test_a_batch_that_is_too_large_for_something_between_goes_in_halves(self, pauses: list[float]) -> None:
        def small(asked: Asked) -> Answer:
            return Answer(413, b"<html>") if len(asked.ids) > 2 else taken(asked)

        with told(small) as api:
            (sent,) = batches(api, pauses).create(lines(7))
        assert (sent.created, sent.rejects, pauses) == (7, [], [])
        assert [id for asked in api.asked if len(asked.ids) < 3 for id in asked.ids] == lines(7).ids

    def test_one_that_is_too_large_alone_is_refused_alone(self, pauses: list[float]) -> None:
        def not_the_third(asked: Asked) -> Answer:
            return Answer(413, b"") if "j:2" in asked.ids else taken(asked)

        with told(not_the_third) as api:
            (sent,) = batches(api, pauses).create(lines(5))
        assert (sent.created, [reject.key for reject in sent.rejects]) == (4, ["2"])
        assert sent.rejects[0].reason == f"{api.url} answered 413 Request Entity Too Large"

    def test_what_failed_in_the_second_half_is_found_there(self, pauses: list[float]) -> None:
        def small(asked: Asked) -> Answer:
            if len(asked.ids) > 2:
                return Answer(413)
            return each(*(BAD if id == "j:3" else AWAY if id == "j:1" and not pauses else made(id) for id in asked.ids))

        with told(small) as api:
            (sent,) = batches(api, pauses).create(lines(4))
        assert (sent.created, [reject.key for reject in sent.rejects]) == (3, ["3"])

    def test_a_line_that_no_request_holds_is_not_sent(self, pauses: list[float]) -> None:
        there = Payloads([b'{"id":"j:0"}', b" " * (MAX_LINE_BYTES + 1), b'{"id":"j:2"}'], ["j:0", "j:1", "j:2"], None)
        with told(taken) as api:
            sent = list(batches(api, pauses).create(there))
        assert [(part.created, len(part.rejects)) for part in sent] == [(1, 0), (0, 1), (1, 0)]
        assert sent[1].rejects[0].reason == f"expected a body of at most {MAX_LINE_BYTES} bytes"

    @given(st.lists(st.integers(0, 150), max_size=30), st.integers(1, 5))
    def test_parts_are_all_the_lines_in_order(self, sizes: list[int], most: int) -> None:
        there = Payloads([b"x" * size for size in sizes], [str(number) for number in range(len(sizes))], None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("later.bulk.sending.BATCH_BYTES", 100)
            found = list(parts(there, most))
        assert [id for part in found for id in part.ids] == there.ids
        for part in found:
            assert 1 <= len(part.ids) <= most
            assert len(part.ids) == 1 or len(b"\n".join(part.bodies)) <= 100


class TestWhoIsNotLater:
    @pytest.mark.parametrize(
        "body",
        [
            b"<html>hello</html>",
            b"",
            [],
            {},
            {"results": []},
            {"results": [1, 2]},
            {"results": [{"id": "a"}, {"id": "b"}]},
            {"results": [{"id": "a"}, {"id": "b"}], "created": 1, "existing": 0, "refused": 0, "failed": 0},
            {"results": [{"id": "a"}, {"id": "b"}], "created": None, "existing": 2, "refused": 0, "failed": 0},
            {"results": [{"error": "x"}, {"id": "b"}], "created": 1, "existing": 0, "refused": 1, "failed": 0},
            {"results": [{"error": {}}, {"id": "b"}], "created": 1, "existing": 0, "refused": 1, "failed": 0},
        ],
        ids=str,
    )
    def test_an_answer_that_later_does_not_give_ends_it_in_one_line(self, body: Any, pauses: list[float]) -> None:
        with told(Answer(200, body)) as api, pytest.raises(CallFailed, match="is it later that answers there"):
            list(batches(api, pauses).create(lines(2)))
        assert (len(api.asked), pauses) == (1, [])

    @pytest.mark.parametrize(
        "result", [{}, {"state": None}, {"error": 5}, {"error": {}}, {"error": {"status": "x"}}, 5]
    )
    def test_so_does_one_to_a_question(self, result: Any, pauses: list[float]) -> None:
        with (
            told(Answer(200, {"results": [result]})) as api,
            pytest.raises(LaterError, match="is it later that answers"),
        ):
            batches(api, pauses).find(["j:1"])

    @pytest.mark.parametrize("body", [{"job": "j"}, {"created": 1, "existing": None, "refused": 0}, [], 5])
    def test_so_does_one_to_what_a_job_has_come_to(self, body: Any, pauses: list[float]) -> None:
        with told(Answer(200, body)) as api, pytest.raises(LaterError, match="is it later that answers there"):
            batches(api, pauses).counts()


class TestAsking:
    def test_ids_go_in_batches(self, pauses: list[float]) -> None:
        with told(_standing) as api:
            found = batches(api, pauses, batch=2).find([f"j:{number}" for number in range(5)])
        assert [asked.ids for asked in api.asked] == [["j:0", "j:1"], ["j:2", "j:3"], ["j:4"]]
        assert found == [TaskStatus.PENDING, TaskStatus.DEAD, TaskStatus.ENDED, TaskStatus.MISSING, TaskStatus.PENDING]

    def test_an_id_that_stands_twice_is_asked_for_once(self, pauses: list[float]) -> None:
        with told(_cancelled) as api:
            found = batches(api, pauses).cancel(["j:0", "j:1", "j:0"])
        assert api.asked[0].ids == ["j:0", "j:1"]
        assert found == [TaskStatus.PENDING] * 3

    def test_those_that_could_not_be_found_out_are_asked_for_again_alone(self, pauses: list[float]) -> None:
        first = Answer(200, {"results": [{"state": "delay"}, AWAY, AWAY]})
        second = Answer(200, {"results": [wrong(404, "no", ended=True), {"state": "dead"}]})
        with told(first, problem(503), second) as api:
            found = batches(api, pauses).find(["a", "b", "c"])
        assert [asked.ids for asked in api.asked] == [["a", "b", "c"], ["b", "c"], ["b", "c"]]
        assert found == [TaskStatus.PENDING, TaskStatus.ENDED, TaskStatus.DEAD]

    def test_a_refusal_ends_it(self, pauses: list[float]) -> None:
        with (
            told(Answer(200, {"results": [{"state": "delay"}, BAD]})) as api,
            pytest.raises(LaterError, match="delay: "),
        ):
            batches(api, pauses).find(["a", "b"])
        assert pauses == []

    def test_for_ever_is_too_long(self, pauses: list[float]) -> None:
        with told(Answer(200, {"results": [AWAY]})) as api, pytest.raises(LaterError, match="tried 3 times"):
            batches(api, pauses, retries=2).find(["a"])
        assert len(api.asked) == 3

    def test_counts_are_asked_for_again(self, pauses: list[float]) -> None:
        counts = Answer(200, {"job": "j", "created": 3, "existing": 2, "refused": 1})
        with told(problem(503), counts) as api:
            assert batches(api, pauses).counts() == Counts(3, 2, 1)
        assert api.asked[0].path == "/jobs/j"


_WHERE: Sequence[dict[str, Any]] = (
    {"state": "unack"}, {"state": "dead"}, wrong(404, "gone", ended=True), wrong(404, "never"), {"state": "error"},
)  # fmt: skip


def _standing(asked: Asked) -> Answer:
    return Answer(200, {"results": [_WHERE[int(id[2:])] for id in asked.ids]})


def _cancelled(asked: Asked) -> Answer:
    return Answer(200, {"results": [{"id": id} for id in asked.ids]})

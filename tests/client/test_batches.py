"""The batch sender repeats calls that may work later, but only as often as its retry policy allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from later.client import batch_split
from later.client.api_transport import ApiTransport
from later.client.batches import JITTER, MAX_BODY_BYTES, BatchSender, ItemsUnavailable, RetryPolicy
from later.client.http import ApiClient
from later.client.transport import BatchResult, CreateCounts, ItemError, TaskStatus
from later.core.errors import CallFailed, LaterError, Unavailable
from tests.cases import each_case
from tests.client.api_servers import (
    StubAnswer,
    StubRequest,
    StubServer,
    batch_body,
    create_all,
    error_result,
    problem,
    stub_server,
)

UNAVAILABLE = error_result(503, "this shard is unavailable")
BAD = error_result(400, "delay: expected a number of seconds ≥ 0, got -5", field="delay")


@pytest.fixture
def pauses() -> list[float]:
    """The pauses that were requested; none is made."""
    return []


def task_bodies(count: int) -> list[bytes]:
    return [b'{"id":"j:%d","topic":"t"}' % number for number in range(count)]


def build_sender(server: StubServer, pauses: list[float], batch_size: int = 1000, retries: int = 3) -> BatchSender:
    transport = ApiTransport(ApiClient(server.url, 5, lambda: 0.0), "j")
    return BatchSender(transport, RetryPolicy(retries, pauses.append), batch_size=batch_size)


def results(*results: dict[str, Any]) -> StubAnswer:
    """Build a 200 with these results, whatever the request."""
    return StubAnswer(200, batch_body(*results))


def task_result(id: str, created: bool = True) -> dict[str, Any]:
    return {"id": id, "created": created}


class TestCreating:
    def test_bodies_are_sent_in_batches(self, pauses: list[float]) -> None:
        with stub_server(create_all) as server:
            sent = list(build_sender(server, pauses, batch_size=2).create(task_bodies(5)))
        assert [(request.path, request.ids) for request in server.requests] == [
            ("/create/batch?job=j", ids) for ids in (["j:0", "j:1"], ["j:2", "j:3"], ["j:4"])
        ]
        assert [result.created for result in sent] == [2, 2, 1]

    def test_nothing_is_sent_without_bodies(self, pauses: list[float]) -> None:
        with stub_server(create_all) as server:
            assert list(build_sender(server, pauses).create([])) == []
        assert server.requests == []

    def test_rejected_items_are_reported_by_position_and_not_repeated(self, pauses: list[float]) -> None:
        other = error_result(413, "expected a body of at most 9 bytes")
        with stub_server(results(BAD, task_result("j:1"), other, task_result("j:3", created=False))) as server:
            (sent,) = build_sender(server, pauses).create(task_bodies(4))
        assert sent == BatchResult(
            1,
            [3],
            {
                0: ItemError(400, "delay", "delay: expected a number of seconds ≥ 0, got -5"),
                2: ItemError(413, None, "expected a body of at most 9 bytes"),
            },
        )
        assert (len(server.requests), pauses) == (1, [])

    def test_positions_count_from_the_first_body_of_all_batches(self, pauses: list[float]) -> None:
        answers = [results(task_result("j:0"), BAD), results(task_result("j:2", created=False), BAD)]
        with stub_server(*answers) as server:
            first, second = build_sender(server, pauses, batch_size=2).create(task_bodies(4))
        assert (first.existing, [*first.errors]) == ([], [1])
        assert (second.existing, [*second.errors]) == ([2], [3])

    def test_unavailable_items_are_repeated_alone(self, pauses: list[float]) -> None:
        first = results(UNAVAILABLE, task_result("j:1"), BAD, UNAVAILABLE, task_result("j:4", created=False))
        with stub_server(first, results(task_result("j:0"), UNAVAILABLE), results(BAD)) as server:
            (sent,) = build_sender(server, pauses).create(task_bodies(5))
        assert [request.ids for request in server.requests[1:]] == [["j:0", "j:3"], ["j:3"]]
        assert (sent.created, sent.existing, [*sent.errors]) == (2, [4], [2, 3])
        assert len(pauses) == 2

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
    def test_a_batch_is_repeated_after_a_retryable_status(self, status: int, pauses: list[float]) -> None:
        with stub_server(problem(status), create_all) as server:
            (sent,) = build_sender(server, pauses).create(task_bodies(3))
        assert (sent.created, len(server.requests), len(pauses)) == (3, 2, 1)
        assert server.requests[0] == server.requests[1]

    @each_case("lost", [StubAnswer(200, batch_body(), cut=True), StubAnswer(200, b"x", cut=True)])
    def test_a_batch_is_repeated_if_its_answer_was_cut(self, lost: StubAnswer, pauses: list[float]) -> None:
        with stub_server(lost, results(task_result("j:0", created=False))) as server:
            (sent,) = build_sender(server, pauses).create(task_bodies(1))
        assert (sent.existing, len(server.requests)) == ([0], 2)

    @each_case("status", [301, 400, 401, 403, 404, 405, 501])
    def test_another_status_ends_the_sending_with_its_reason(self, status: int, pauses: list[float]) -> None:
        with stub_server(problem(status, "no use")) as server, pytest.raises(LaterError, match=r"^no use$"):
            list(build_sender(server, pauses).create(task_bodies(3)))
        assert (len(server.requests), pauses) == (1, [])

    def test_batches_after_one_that_cannot_be_sent_are_not_tried(self, pauses: list[float]) -> None:
        with stub_server(create_all, problem(400)) as server, pytest.raises(LaterError):
            list(build_sender(server, pauses, batch_size=1).create(task_bodies(3)))
        assert len(server.requests) == 2

    def test_validation_creates_nothing_and_names_no_job(self, pauses: list[float]) -> None:
        body = batch_body(task_result("j:0", created=False), BAD) | {"existing": 0}
        with stub_server(StubAnswer(200, body)) as server:
            (sent,) = build_sender(server, pauses).validate(task_bodies(2))
        assert [request.path for request in server.requests] == ["/create/batch?dry_run=true"]
        assert (sent.created, sent.existing, [*sent.errors]) == (0, [], [1])


class TestAttempts:
    def test_each_attempt_has_its_result_and_the_items_left(self, pauses: list[float]) -> None:
        first = results(UNAVAILABLE, task_result("j:1", created=False), BAD)
        with stub_server(first, results(task_result("j:0"))) as server:
            attempts = list(build_sender(server, pauses).send_batch(task_bodies(3)))
        assert [(a.result.created, a.result.existing, [*a.result.errors]) for a in attempts] == [
            (0, [1], [2]),
            (1, [], []),
        ]
        assert [[*attempt.unavailable] for attempt in attempts] == [[0], []]

    def test_items_that_stay_unavailable_raise_an_error_of_their_own(self, pauses: list[float]) -> None:
        with stub_server(results(task_result("j:0"), UNAVAILABLE)) as server:
            attempts = build_sender(server, pauses, retries=0).send_batch(task_bodies(2))
            assert [*next(attempts).unavailable] == [1]
            with pytest.raises(ItemsUnavailable, match="this shard is unavailable"):
                next(attempts)


class TestRetryPolicy:
    def test_the_last_error_has_the_reason_and_the_number_of_attempts(self, pauses: list[float]) -> None:
        answer = problem(503, "the store's memory is full")
        with stub_server(answer) as server, pytest.raises(CallFailed) as failed:
            list(build_sender(server, pauses, retries=3).create(task_bodies(1)))
        assert str(failed.value) == "the store's memory is full (tried 4 times)"
        assert failed.value.status == 503
        assert not isinstance(failed.value, Unavailable)
        assert (len(server.requests), len(pauses)) == (4, 3)

    def test_a_batch_is_not_repeated_without_retries(self, pauses: list[float]) -> None:
        with stub_server(problem(503, "away")) as server, pytest.raises(LaterError, match=r"^away$"):
            list(build_sender(server, pauses, retries=0).create(task_bodies(1)))
        assert (len(server.requests), pauses) == (1, [])

    def test_items_that_stay_unavailable_end_the_sending(self, pauses: list[float]) -> None:
        def fail_all(request: StubRequest) -> StubAnswer:
            return results(*[UNAVAILABLE] * len(request.ids))

        with (
            stub_server(fail_all) as server,
            pytest.raises(LaterError, match=r"^this shard is unavailable \(tried 3 times\)$"),
        ):
            list(build_sender(server, pauses, retries=2).create(task_bodies(3)))
        assert [len(request.ids) for request in server.requests] == [3, 3, 3]

    def test_pauses_double_up_to_a_minute_with_jitter(self, pauses: list[float]) -> None:
        with stub_server(problem(503)) as server, pytest.raises(LaterError):
            list(build_sender(server, pauses, retries=8).create(task_bodies(1)))
        least = [1, 2, 4, 8, 16, 32, 60, 60]
        assert all(low <= pause <= low * (1 + JITTER) for low, pause in zip(least, pauses, strict=True))

    @pytest.mark.parametrize(("retry_after", "least"), [("0", 0), ("7", 7), ("Thu, 01 Jan 1970 00:00:20 GMT", 20)])
    def test_a_requested_pause_is_kept(self, retry_after: str, least: float, pauses: list[float]) -> None:
        with stub_server(problem(503, retry_after=retry_after), create_all) as server:
            list(build_sender(server, pauses).create(task_bodies(1)))
        assert least <= pauses[0] <= least * (1 + JITTER)

    def test_a_refused_connection_is_retried(self, pauses: list[float]) -> None:
        with stub_server(create_all) as server:
            stopped = server
        with pytest.raises(LaterError, match=r"did not answer: Connection refused \(tried 2 times\)$"):
            list(build_sender(stopped, pauses, retries=1).create(task_bodies(1)))

    def test_each_pause_is_announced_with_its_reason(self) -> None:
        pauses, announced = list[float](), list[tuple[str, float]]()

        def fail() -> None:
            raise Unavailable("away", 503, retry_after_ms=7000)

        policy = RetryPolicy(
            2, pauses.append, jitter=0, on_retry=lambda reason, pause_s: announced.append((reason, pause_s))
        )
        with pytest.raises(CallFailed, match=r"^away \(tried 3 times\)$"):
            policy.call(fail, min_pause_s=10)
        assert (pauses, announced) == ([10, 10], [("away", 10)] * 2)


class TestTooLarge:
    def test_a_batch_that_is_too_large_for_a_proxy_is_halved(self, pauses: list[float]) -> None:
        def accept_two(request: StubRequest) -> StubAnswer:
            return StubAnswer(413, b"<html>") if len(request.ids) > 2 else create_all(request)

        with stub_server(accept_two) as server:
            (sent,) = build_sender(server, pauses).create(task_bodies(7))
        assert (sent, pauses) == (BatchResult(7, [], {}), [])
        accepted = [id for request in server.requests if len(request.ids) < 3 for id in request.ids]
        assert accepted == [f"j:{number}" for number in range(7)]

    def test_an_item_that_is_too_large_is_rejected_alone(self, pauses: list[float]) -> None:
        def reject_the_third(request: StubRequest) -> StubAnswer:
            return StubAnswer(413, b"") if "j:2" in request.ids else create_all(request)

        with stub_server(reject_the_third) as server:
            (sent,) = build_sender(server, pauses).create(task_bodies(5))
        too_large = ItemError(413, None, f"{server.url} answered 413 Request Entity Too Large")
        assert sent == BatchResult(4, [], {2: too_large})

    def test_results_of_the_second_half_keep_their_positions(self, pauses: list[float]) -> None:
        def accept_two(request: StubRequest) -> StubAnswer:
            if len(request.ids) > 2:
                return StubAnswer(413)
            bad = {"j:3": BAD} if pauses else {"j:3": BAD, "j:1": UNAVAILABLE}
            return results(*(bad.get(id, task_result(id, created=id != "j:2")) for id in request.ids))

        with stub_server(accept_two) as server:
            (sent,) = build_sender(server, pauses).create(task_bodies(4))
        assert (sent.created, sent.existing, [*sent.errors]) == (2, [2], [3])

    def test_a_half_that_was_not_answered_is_repeated_alone(self, pauses: list[float]) -> None:
        with stub_server(StubAnswer(413), create_all, problem(503), create_all) as server:
            (sent,) = build_sender(server, pauses).create(task_bodies(4))
        assert (sent, len(pauses)) == (BatchResult(4, [], {}), 1)
        assert [request.ids for request in server.requests[1:]] == [["j:0", "j:1"], ["j:2", "j:3"], ["j:2", "j:3"]]

    def test_a_half_that_fails_leaves_the_result_of_the_other(self, pauses: list[float]) -> None:
        with stub_server(StubAnswer(413), create_all, problem(400)) as server:
            attempts = build_sender(server, pauses).send_batch(task_bodies(4))
            result, unavailable = next(attempts)
            assert (result, [*unavailable]) == (BatchResult(2, [], {}), [2, 3])
            with pytest.raises(CallFailed, match="come again"):
                next(attempts)

    def test_the_second_half_is_sent_though_items_of_the_first_stay_unavailable(self, pauses: list[float]) -> None:
        def answer(request: StubRequest) -> StubAnswer:
            if len(request.ids) > 2:
                return StubAnswer(413)
            return results(*(UNAVAILABLE if id == "j:1" else task_result(id) for id in request.ids))

        with stub_server(answer) as server:
            attempts = build_sender(server, pauses, retries=1).send_batch(task_bodies(4))
            assert [[*next(attempts).unavailable] for _ in range(3)] == [[1, 2, 3], [1, 2, 3], [1]]
            with pytest.raises(ItemsUnavailable, match="this shard is unavailable"):
                next(attempts)
        assert [request.ids for request in server.requests[1:]] == [["j:0", "j:1"], ["j:1"], ["j:2", "j:3"]]

    def test_a_body_that_no_request_can_hold_is_not_sent(self, pauses: list[float]) -> None:
        bodies = [b'{"id":"j:0"}', b" " * (MAX_BODY_BYTES + 1), b'{"id":"j:2"}']
        with stub_server(create_all) as server:
            sent = list(build_sender(server, pauses).create(bodies))
        assert [(result.created, [*result.errors]) for result in sent] == [(1, []), (0, [1]), (1, [])]
        assert sent[1].errors[1].reason == f"expected a body of at most {MAX_BODY_BYTES} bytes"

    @given(st.lists(st.integers(0, 150), max_size=30), st.integers(1, 5))
    def test_batches_are_all_the_items_in_order_and_limited(self, sizes: list[int], batch_size: int) -> None:
        transport = ApiTransport(ApiClient("http://127.0.0.1:1", 1, lambda: 0.0))
        sender = BatchSender(transport, RetryPolicy(0, lambda pause: None), batch_size=batch_size)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch_split, "BATCH_BYTES", 100)
            split = list(sender.split(range(len(sizes)), lambda item: b"x" * sizes[item]))
        assert [item for batch in split for item in batch] == list(range(len(sizes)))
        for batch in split:
            assert 1 <= len(batch) <= batch_size
            assert len(batch) == 1 or sum(sizes[item] + 1 for item in batch) - 1 <= 100


class TestForeignAnswers:
    @each_case(
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
    )
    def test_an_answer_that_later_does_not_give_ends_the_sending(self, body: Any, pauses: list[float]) -> None:
        with (
            stub_server(StubAnswer(200, body)) as server,
            pytest.raises(CallFailed, match="is this the URL of later"),
        ):
            list(build_sender(server, pauses).create(task_bodies(2)))
        assert (len(server.requests), pauses) == (1, [])

    @each_case("result", [{}, {"state": None}, {"error": 5}, {"error": {}}, {"error": {"status": "x"}}, 5])
    def test_a_query_with_an_answer_that_later_does_not_give_fails(self, result: Any, pauses: list[float]) -> None:
        with (
            stub_server(StubAnswer(200, {"results": [result]})) as server,
            pytest.raises(LaterError, match="is this the URL of later"),
        ):
            build_sender(server, pauses).query(["j:1"])

    @each_case("body", [{"job": "j"}, {"created": 1, "existing": None, "refused": 0}, [], 5])
    def test_counts_that_later_does_not_give_fail(self, body: Any, pauses: list[float]) -> None:
        with (
            stub_server(StubAnswer(200, body)) as server,
            pytest.raises(LaterError, match="is this the URL of later"),
        ):
            build_sender(server, pauses).counts()


class TestLookups:
    def test_ids_are_sent_in_batches(self, pauses: list[float]) -> None:
        with stub_server(_statuses) as server:
            statuses = build_sender(server, pauses, batch_size=2).query([f"j:{number}" for number in range(5)])
        assert [request.ids for request in server.requests] == [["j:0", "j:1"], ["j:2", "j:3"], ["j:4"]]
        assert statuses == [
            TaskStatus.PENDING, TaskStatus.DEAD, TaskStatus.ENDED, TaskStatus.MISSING, TaskStatus.PENDING,
        ]  # fmt: skip

    def test_a_repeated_id_is_sent_once(self, pauses: list[float]) -> None:
        with stub_server(_deletions) as server:
            statuses = build_sender(server, pauses).cancel(["j:0", "j:1", "j:0"])
        assert server.requests[0].ids == ["j:0", "j:1"]
        assert statuses == [TaskStatus.PENDING] * 3

    def test_unavailable_ids_are_repeated_alone(self, pauses: list[float]) -> None:
        first = StubAnswer(200, {"results": [{"state": "delay"}, UNAVAILABLE, UNAVAILABLE]})
        second = StubAnswer(200, {"results": [error_result(404, "no", ended=True), {"state": "dead"}]})
        with stub_server(first, problem(503), second) as server:
            statuses = build_sender(server, pauses).query(["a", "b", "c"])
        assert [request.ids for request in server.requests] == [["a", "b", "c"], ["b", "c"], ["b", "c"]]
        assert statuses == [TaskStatus.PENDING, TaskStatus.ENDED, TaskStatus.DEAD]

    def test_a_rejected_id_ends_the_lookup(self, pauses: list[float]) -> None:
        with (
            stub_server(StubAnswer(200, {"results": [{"state": "delay"}, BAD]})) as server,
            pytest.raises(LaterError, match="delay: "),
        ):
            build_sender(server, pauses).query(["a", "b"])
        assert pauses == []

    def test_tasks_that_did_not_fit_in_the_answer_are_asked_for_again_at_once(self, pauses: list[float]) -> None:
        def answer(request: StubRequest) -> StubAnswer:
            first, *others = request.ids
            full = [error_result(413, "the answer is full") for _ in others]
            return StubAnswer(200, batch_body({"id": first, "state": "delay"}, *full))

        with stub_server(answer) as server:
            statuses = build_sender(server, pauses, retries=0).query(["a", "b", "c", "a"])
        assert statuses == [TaskStatus.PENDING] * 4
        assert [request.ids for request in server.requests] == [["a", "b", "c"], ["b", "c"], ["c"]]
        assert pauses == []

    def test_a_batch_of_which_nothing_fits_in_the_answer_fails(self, pauses: list[float]) -> None:
        with stub_server(results(error_result(413, "too large"))) as server, pytest.raises(CallFailed) as failed:
            build_sender(server, pauses).query(["a"])
        assert failed.value.status == 413

    def test_ids_that_stay_unavailable_end_the_lookup(self, pauses: list[float]) -> None:
        answer = StubAnswer(200, {"results": [UNAVAILABLE]})
        with stub_server(answer) as server, pytest.raises(LaterError, match="tried 3 times"):
            build_sender(server, pauses, retries=2).query(["a"])
        assert len(server.requests) == 3

    def test_counts_are_retried(self, pauses: list[float]) -> None:
        counts = StubAnswer(200, {"job": "j", "created": 3, "existing": 2, "refused": 1})
        with stub_server(problem(503), counts) as server:
            assert build_sender(server, pauses).counts() == CreateCounts(3, 2, 1)
        assert server.requests[0].path == "/jobs/j"


_STATES: Sequence[dict[str, Any]] = (
    {"state": "unack"}, {"state": "dead"}, error_result(404, "gone", ended=True), error_result(404, "never"),
    {"state": "error"},
)  # fmt: skip


def _statuses(request: StubRequest) -> StubAnswer:
    return StubAnswer(200, {"results": [_STATES[int(id[2:])] for id in request.ids]})


def _deletions(request: StubRequest) -> StubAnswer:
    return StubAnswer(200, {"results": [{"id": id} for id in request.ids]})

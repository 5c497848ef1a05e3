"""The display of a job's progress can neither fail the job nor delay its end."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from later.bulk.jobs.run import watch_counts
from later.bulk.transport.target import Target
from later.client.transport import CreateCounts
from tests.cases import each_case
from tests.client.api_servers import StubAnswer, StubRequest, problem, stub_server


class CountdownEvent(Event):
    """An event that is set after a number of waits. No wait takes time."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._left = waits

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._left -= 1
        if self._left < 0:
            self.set()
        return self.is_set()


def counts(created: int, existing: int = 0, refused: int = 0) -> StubAnswer:
    return StubAnswer(200, {"job": "j", "created": created, "existing": existing, "refused": refused})


class RecordedProgress:
    """A display that keeps what it is shown."""

    def __init__(self) -> None:
        self.counts: list[CreateCounts] = []
        self.problems: list[str] = []

    def update_counts(self, counts: CreateCounts) -> None:
        self.counts.append(counts)

    def update_partitions(self, finished: int, total: int) -> None:
        raise AssertionError("Spark does not run")

    def report_problem(self, reason: str) -> None:
        self.problems.append(reason)


def watched_counts(target: Target, waits: int) -> list[CreateCounts]:
    return watch(target, waits).counts


def watch(target: Target, waits: int) -> RecordedProgress:
    progress = RecordedProgress()
    watch_counts(target, "j", "r", progress, CountdownEvent(waits))
    return progress


def test_the_counts_of_the_run_are_shown() -> None:
    with stub_server(counts(5, 2, 1), counts(9, 2, 1)) as server:
        assert watched_counts(Target(url=server.url), 2) == [CreateCounts(5, 2, 1), CreateCounts(9, 2, 1)]
    assert [request.path for request in server.requests] == ["/jobs/j?run=r"] * 2


def test_an_unknown_run_has_no_counts() -> None:
    with stub_server(problem(404)) as server:
        assert watched_counts(Target(url=server.url), 1) == [CreateCounts()]


@each_case("answer", [problem(503), problem(500), StubAnswer(200, b"<html>"), StubAnswer(200, {}), StubAnswer(403)])
def test_a_failed_request_is_repeated(answer: StubAnswer) -> None:
    with stub_server(answer, counts(5)) as server:
        assert watched_counts(Target(url=server.url), 3) == [CreateCounts(5)]


def test_a_store_that_does_not_answer_is_a_problem_and_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = watch(Target(url=f"unix://{tmp_path}/none"), 3)
    assert progress.counts == []
    assert progress.problems
    assert all(reason.startswith("the store cannot be reached") for reason in progress.problems)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_shown_once_the_job_is_done() -> None:
    done = Event()

    def answer_late(request: StubRequest) -> StubAnswer:
        done.set()
        return counts(5)

    progress = RecordedProgress()
    with stub_server(answer_late) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("later.bulk.jobs.run.INTERVAL_S", 0)
        watch_counts(Target(url=server.url), "j", "r", progress, done)
    assert (progress.counts, progress.problems) == ([], [])

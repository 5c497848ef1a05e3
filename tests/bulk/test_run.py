"""What is told of a job while it runs: it can neither fail the job nor hold up its end."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from later.bulk.jobs.run import watch
from later.bulk.transport.target import Target
from later.client.transport import Counts
from tests.bulk.answers import Answer, problem, told


class Over(Event):
    """A job that is over at the n-th look; nobody waits for it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._left = looks

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._left -= 1
        if self._left < 0:
            self.set()
        return self.is_set()


def counts(created: int, existing: int = 0, refused: int = 0) -> Answer:
    return Answer(200, {"job": "j", "created": created, "existing": existing, "refused": refused})


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.heard: list[Counts] = []
        self.troubles: list[str] = []

    def hear(self, counts: Counts) -> None:
        self.heard.append(counts)

    def parts(self, done: int, of: int) -> None:
        raise AssertionError("Spark is not there")

    def trouble(self, reason: str) -> None:
        self.troubles.append(reason)


def heard(target: Target, looks: int, before: Counts | None = None) -> list[Counts]:
    return listened(target, looks, before).heard


def listened(target: Target, looks: int, before: Counts | None = None) -> Listener:
    listener = Listener()
    watch(target, "j", before or Counts(), listener, Over(looks))
    return listener


def test_what_came_since_the_job_began_is_told() -> None:
    with told(counts(5, 2, 1), counts(9, 2, 1)) as api:
        assert heard(Target(url=api.url), 2, Counts(4, 2, 0)) == [Counts(1, 0, 1), Counts(5, 0, 1)]


def test_a_job_that_nobody_has_counted_yet_has_come_to_nothing() -> None:
    with told(problem(404)) as api:
        assert heard(Target(url=api.url), 1) == [Counts()]


@pytest.mark.parametrize("answer", [problem(503), problem(500), Answer(200, b"<html>"), Answer(200, {}), Answer(403)])
def test_what_cannot_be_asked_is_asked_again(answer: Answer) -> None:
    with told(answer, counts(5)) as api:
        assert heard(Target(url=api.url), 3) == [Counts(5)]


def test_a_store_that_is_not_there_is_told_of_and_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listener = listened(Target(url=f"unix://{tmp_path}/none"), 3)
    assert listener.heard == []
    assert listener.troubles
    assert all(reason.startswith("the store cannot be reached") for reason in listener.troubles)
    assert capsys.readouterr() == ("", "")


def test_nothing_is_told_once_the_job_is_over() -> None:
    over = Event()

    def late(asked: Any) -> Answer:
        over.set()
        return counts(5)

    listener = Listener()
    with told(late) as api, pytest.MonkeyPatch.context() as patch:
        patch.setattr("later.bulk.jobs.run.LOOK_EVERY_S", 0)
        watch(Target(url=api.url), "j", Counts(), listener, over)
    assert (listener.heard, listener.troubles) == ([], [])

"""By the API: batches of NDJSON over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from later.client.http import CallFailed, Client, results_of
from later.client.transport import BatchResult, Counts, ItemError, TaskStatus, Unavailable

NDJSON = "application/x-ndjson"
TOO_LARGE = 413
_STANDING = {
    "delay": TaskStatus.PENDING,
    "unack": TaskStatus.PENDING,
    "error": TaskStatus.PENDING,
    "dead": TaskStatus.DEAD,
}


class ApiTransport:
    """Calls the API for one job."""

    def __init__(self, client: Client, job: str) -> None:
        self._client = client
        self._job = quote(job, safe="")

    def create(self, bodies: Sequence[bytes]) -> BatchResult:
        came = self._create(f"/create/batch?job={self._job}", bodies)
        if came.created + came.existing + len(came.wrong) != len(bodies):
            raise _stranger()
        return came

    def judge(self, bodies: Sequence[bytes]) -> BatchResult:
        return self._create("/create/batch?dry_run=true", bodies)

    def _create(self, path: str, bodies: Sequence[bytes]) -> BatchResult:
        try:
            answer = self._post(path, b"\n".join(bodies))
        except CallFailed as error:
            if error.status != TOO_LARGE:
                raise
            if len(bodies) == 1:
                return BatchResult(0, 0, {0: ItemError(TOO_LARGE, None, str(error))})
            half = len(bodies) // 2  # something between us and the daemon takes less
            return _joined(self._create(path, bodies[:half]), self._create(path, bodies[half:]), half)
        with _of_later():
            results = results_of(answer, len(bodies))
            if not answer["refused"] and not answer["failed"]:
                return BatchResult(int(answer["created"]), int(answer["existing"]), {})
            wrong = {i: _wrong(result["error"]) for i, result in enumerate(results) if "error" in result}
            return BatchResult(int(answer["created"]), int(answer["existing"]), wrong)

    def find(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        answer = self._post("/query/batch", _by_id(ids))
        with _of_later():
            return [_found(result) for result in results_of(answer, len(ids))]

    def cancel(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        answer = self._post("/delete/batch?pending=true", _by_id(ids))
        with _of_later():
            return [_cancelled(result) for result in results_of(answer, len(ids))]

    def counts(self) -> Counts:
        try:
            answer = self._call("GET", f"/jobs/{self._job}")
        except CallFailed as error:
            if error.status == 404:
                return Counts()
            raise
        with _of_later():
            return Counts(*(int(answer[name]) for name in Counts._fields))

    def close(self) -> None:
        """It keeps nothing open."""

    def _post(self, path: str, body: bytes) -> Any:
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        try:
            return self._client.call(method, path, body, NDJSON)
        except CallFailed as error:
            if error.may_pass:
                raise Unavailable(str(error), error.again_ms) from error
            raise


@contextmanager
def _of_later() -> Iterator[None]:
    """Around the reading of an answer. Raises CallFailed: something is not where later says it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _stranger() from None


def _stranger() -> CallFailed:
    return CallFailed("the answer is none of later's: is it later that answers there?", 200)


def _joined(one: BatchResult, other: BatchResult, shift: int) -> BatchResult:
    wrong = {**one.wrong, **{position + shift: fault for position, fault in other.wrong.items()}}
    return BatchResult(one.created + other.created, one.existing + other.existing, wrong)


def _by_id(ids: Sequence[str]) -> bytes:
    return "\n".join(f'{{"id":"{id}"}}' for id in ids).encode()


def _wrong(error: Any) -> ItemError:
    return ItemError(int(error["status"]), error.get("field"), str(error["detail"]))


def _found(result: dict[str, Any]) -> TaskStatus | ItemError:
    if "error" in result:
        return _absent(result["error"])
    return _STANDING[result["state"]]


def _cancelled(result: dict[str, Any]) -> TaskStatus | ItemError:
    if "error" not in result:
        return TaskStatus.PENDING
    return TaskStatus.DEAD if result["error"]["status"] == 409 else _absent(result["error"])


def _absent(error: dict[str, Any]) -> TaskStatus | ItemError:
    if error["status"] != 404:
        return _wrong(error)
    return TaskStatus.ENDED if error.get("ended") else TaskStatus.MISSING

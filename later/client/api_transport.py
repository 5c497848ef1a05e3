"""The transport over the HTTP API, in batches of NDJSON. Its users need neither the store nor its password."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from later.client.http import ApiClient
from later.client.transport import TOO_LARGE, BatchResult, CreateCounts, ItemError, TaskStatus
from later.core.errors import NOT_LATER, CallFailed

NDJSON = "application/x-ndjson"
_STATUS_BY_STATE = {
    "delay": TaskStatus.PENDING,
    "unack": TaskStatus.PENDING,
    "error": TaskStatus.PENDING,
    "dead": TaskStatus.DEAD,
}


class ApiTransport:
    """A `Transport` over the API, for one job, for one run of a job, or for none. Closing it closes the client."""

    def __init__(self, client: ApiClient, job: str | None = None, run: str | None = None) -> None:
        self._client = client
        self._job = None if job is None else quote(job, safe="")
        self._run = None if run is None else quote(run, safe="")

    def create(self, bodies: Sequence[bytes]) -> BatchResult:
        query = {"job": self._job, "run": self._run}
        text = "&".join(f"{name}={value}" for name, value in query.items() if value is not None)
        return self._create(f"/create/batch?{text}" if text else "/create/batch", bodies)

    def validate(self, bodies: Sequence[bytes]) -> BatchResult:
        return BatchResult(0, [], self._create("/create/batch?dry_run=true", bodies).errors)

    def _create(self, path: str, bodies: Sequence[bytes]) -> BatchResult:
        try:
            answer = self._client.call("POST", path, b"\n".join(bodies), NDJSON)
        except CallFailed as error:
            if error.status != TOO_LARGE or len(bodies) > 1:
                raise
            return BatchResult(0, [], {0: ItemError(TOO_LARGE, None, str(error))})
        existing, errors = [], {}
        with _answer_errors():
            for position, result in enumerate(_results(answer, len(bodies))):
                if "error" in result:
                    errors[position] = _item_error(result["error"])
                elif not result["created"]:
                    existing.append(position)
        return BatchResult(len(bodies) - len(existing) - len(errors), existing, errors)

    def query(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        answer = self._client.call("POST", "/query/batch", _id_lines(ids), NDJSON)
        with _answer_errors():
            return [
                _status_without_task(result["error"]) if "error" in result else _STATUS_BY_STATE[result["state"]]
                for result in _results(answer, len(ids))
            ]

    def cancel(self, ids: Sequence[str]) -> list[TaskStatus | ItemError]:
        answer = self._client.call("POST", "/delete/batch?pending=true", _id_lines(ids), NDJSON)
        statuses: list[TaskStatus | ItemError] = []
        with _answer_errors():
            for result in _results(answer, len(ids)):
                if "error" not in result:
                    statuses.append(TaskStatus.IN_FLIGHT if result.get("in_flight") else TaskStatus.PENDING)
                elif result["error"]["status"] == 409:
                    statuses.append(TaskStatus.DEAD)
                else:
                    statuses.append(_status_without_task(result["error"]))
        return statuses

    def counts(self) -> CreateCounts:
        try:
            answer = self._client.call("GET", f"/jobs/{self._job}" + (f"?run={self._run}" if self._run else ""))
        except CallFailed as error:
            if error.status == 404:
                return CreateCounts()
            raise
        with _answer_errors():
            return CreateCounts(*(int(answer[name]) for name in CreateCounts._fields))

    def close(self) -> None:
        self._client.close()


@contextmanager
def _answer_errors() -> Iterator[None]:
    """Translate the errors of reading an answer into CallFailed."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CallFailed(f"expected an answer of later's API, got something else: {NOT_LATER}", 200) from None


def _results(answer: Any, count: int) -> list[dict[str, Any]]:
    """Return a batch's results, one for each item. Raises CallFailed: the answer has no results, or another number."""
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or len(results) != count or not all(isinstance(r, dict) for r in results):
        raise CallFailed(f"expected a result for each item of the batch, got something else: {NOT_LATER}", 200)
    return results


def _id_lines(ids: Sequence[str]) -> bytes:
    return "\n".join(f'{{"id":"{id}"}}' for id in ids).encode()


def _item_error(error: Any) -> ItemError:
    return ItemError(int(error["status"]), error.get("field"), str(error["detail"]))


def _status_without_task(error: dict[str, Any]) -> TaskStatus | ItemError:
    if error["status"] != 404:
        return _item_error(error)
    return TaskStatus.ENDED if error.get("ended") else TaskStatus.MISSING

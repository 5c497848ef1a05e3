"""By the API: batches of NDJSON over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from later.bulk.doors import Came, Counts, Standing, Unreached, Wrong
from later.client import CallFailed, Client, results_of

NDJSON = "application/x-ndjson"
TOO_LARGE = 413
_PENDING = frozenset({"delay", "unack", "error"})


class ApiDoor:
    """Calls the API for one job."""

    def __init__(self, client: Client, job: str) -> None:
        self._client = client
        self._job = quote(job, safe="")

    def create(self, bodies: Sequence[bytes]) -> Came:
        return self._create(f"/create/batch?job={self._job}", bodies)

    def judge(self, bodies: Sequence[bytes]) -> Came:
        return self._create("/create/batch?dry_run=true", bodies)

    def _create(self, path: str, bodies: Sequence[bytes]) -> Came:
        try:
            answer = self._post(path, b"\n".join(bodies))
        except CallFailed as error:
            if error.status != TOO_LARGE:
                raise
            if len(bodies) == 1:
                return Came(0, 0, {0: Wrong(TOO_LARGE, None, str(error))})
            half = len(bodies) // 2  # something between us and the daemon takes less
            return _joined(self._create(path, bodies[:half]), self._create(path, bodies[half:]), half)
        results = results_of(answer, len(bodies))
        if not answer.get("refused") and not answer.get("failed"):
            return Came(answer["created"], answer["existing"], {})
        wrong = {i: _wrong(result["error"]) for i, result in enumerate(results) if "error" in result}
        return Came(answer["created"], answer["existing"], wrong)

    def find(self, ids: Sequence[str]) -> list[Standing | Wrong]:
        answer = self._post("/query/batch", _by_id(ids))
        return [_found(result) for result in results_of(answer, len(ids))]

    def cancel(self, ids: Sequence[str]) -> list[Standing | Wrong]:
        answer = self._post("/delete/batch?pending=true", _by_id(ids))
        return [_cancelled(result) for result in results_of(answer, len(ids))]

    def counts(self) -> Counts:
        try:
            answer = self._call("GET", f"/jobs/{self._job}")
        except CallFailed as error:
            if error.status == 404:
                return Counts()
            raise
        return Counts(answer["created"], answer["existing"], answer["refused"])

    def close(self) -> None:
        """It keeps nothing open."""

    def _post(self, path: str, body: bytes) -> Any:
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: bytes | None = None) -> Any:
        try:
            return self._client.call(method, path, body, NDJSON)
        except CallFailed as error:
            if error.may_pass:
                raise Unreached(str(error), error.again_ms) from error
            raise


def _joined(one: Came, other: Came, shift: int) -> Came:
    wrong = {**one.wrong, **{position + shift: fault for position, fault in other.wrong.items()}}
    return Came(one.created + other.created, one.existing + other.existing, wrong)


def _by_id(ids: Sequence[str]) -> bytes:
    return "\n".join(f'{{"id":"{id}"}}' for id in ids).encode()


def _wrong(error: Any) -> Wrong:
    return Wrong(int(error["status"]), error.get("field"), str(error["detail"]))


def _found(result: dict[str, Any]) -> Standing | Wrong:
    if "error" in result:
        return _absent(result["error"])
    return Standing.PENDING if result["state"] in _PENDING else Standing.DEAD


def _cancelled(result: dict[str, Any]) -> Standing | Wrong:
    if "error" not in result:
        return Standing.PENDING
    return Standing.DEAD if result["error"]["status"] == 409 else _absent(result["error"])


def _absent(error: dict[str, Any]) -> Standing | Wrong:
    if error["status"] != 404:
        return _wrong(error)
    return Standing.ENDED if error.get("ended") else Standing.MISSING

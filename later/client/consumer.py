"""A consumer: claims the tasks of pulled topics, and says what has become of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from later.client import consumer_calls
from later.client.call import Call
from later.client.http import ApiClient
from later.core.errors import NOT_LATER, CallFailed


class ClaimedJson(NamedTuple):
    """A claimed task and its lease, as the API answers them: `fields` are those of the answer, times in RFC 3339."""

    id: str
    content: str
    lease: str
    fields: Mapping[str, Any]


class Consumer:
    """The calls of a consumer. Each raises CallFailed, and Unavailable if the same call may work later.

    An ack that is sent again because no answer came does no harm: its leases are lost then.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def claim(
        self, topics: Sequence[str], limit: int, *, lease_s: float | None = None, wait_s: float = 0
    ) -> list[ClaimedJson]:
        """Claim up to `limit` due tasks, those of the first topic first; where nothing is due, wait for `wait_s`.

        Their leases last `lease_s`, or as long as the policies of their topics say.
        """
        tasks = self._ask(consumer_calls.claim(topics, limit, lease=lease_s, wait=wait_s)).get("tasks")
        try:
            return [ClaimedJson(task["id"], task["content"], task["lease"], task) for task in tasks or ()]
        except (KeyError, TypeError):
            raise CallFailed(f"expected claimed tasks, got something else: {NOT_LATER}", 200) from None

    def ack(self, leases: Sequence[str]) -> list[str]:
        """Say that tasks are done; return the leases that were lost."""
        return self._tell(consumer_calls.ack(leases))

    def nack(
        self,
        leases: Sequence[str],
        *,
        delay_s: float | None = None,
        message: str | None = None,
        reason: str | None = None,
        dead: bool = False,
        busy: bool = False,
    ) -> list[str]:
        """Say that an attempt at tasks has failed; return the leases that were lost.

        The next attempt comes after `delay_s`, or after the topic's backoff; with `dead` none does. With `busy` the
        attempt costs no retry.
        """
        return self._tell(
            consumer_calls.nack(leases, delay=delay_s, message=message, reason=reason, dead=dead, busy=busy)
        )

    def release(self, leases: Sequence[str]) -> list[str]:
        """Give tasks back, due as before and without an attempt; return the leases that were lost."""
        return self._tell(consumer_calls.release(leases))

    def extend(self, leases: Sequence[str], lease_s: float | None = None) -> list[str]:
        """Keep tasks for `lease_s` from now, or as long as their policies say; return the leases that were lost."""
        return self._tell(consumer_calls.extend(leases, lease_s))

    def _tell(self, call: Call[list[str]]) -> list[str]:
        lost = self._ask(call).get("lost")
        if not isinstance(lost, list):
            raise CallFailed(f"expected the leases that are lost, got something else: {NOT_LATER}", 200)
        return lost

    def _ask(self, call: Call[Any]) -> dict[str, Any]:
        return self._client.ask(call.method, call.path, call.body, call.wait_s)

    def abort(self) -> None:
        """End a call that another thread makes: it fails as if the connection were cut."""
        self._client.abort()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

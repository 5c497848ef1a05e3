"""Random calls of Zaqar's client, compared after each with a list of what the queue must hold."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.zaqar import clients
from tests.zaqar.clients import bodies, make_queue

if TYPE_CHECKING:
    from zaqarclient.queues.v2.claim import Claim
    from zaqarclient.queues.v2.client import Client
    from zaqarclient.queues.v2.message import Message

FAR_S = 600
STEPS = 40


class CheckedQueue:
    """A queue, and beside it the numbers that its messages hold, in order: those that wait, and those of each claim."""

    def __init__(self, client: Client) -> None:
        self.queue = make_queue(client, _default_message_delay=FAR_S)
        self.due: list[int] = []
        self.far: list[int] = []
        self.claims: list[tuple[Claim, dict[int, Message]]] = []
        self.ids: dict[int, str] = {}
        self._numbers = itertools.count()

    @property
    def claimed(self) -> list[int]:
        return sorted(number for _, messages in self.claims for number in messages)

    @property
    def total(self) -> int:
        return len(self.due) + len(self.far) + len(self.claimed)

    def post(self, choice: random.Random) -> None:
        numbers = [next(self._numbers) for _ in range(choice.randint(1, 12))]
        is_due = choice.random() < 0.8
        time.sleep(0.002)  # two processes may get two posts within the same millisecond
        posted = clients.post(self.queue, *numbers, **({"delay": 0} if is_due else {}))
        self.ids |= dict(zip(numbers, posted, strict=True))
        (self.due if is_due else self.far).extend(numbers)

    def claim(self, choice: random.Random) -> None:
        limit = choice.randint(1, 20)
        made = clients.claim(self.queue, limit)
        messages = {message.body: message for message in made}
        assert list(messages) == self.due[:limit]
        del self.due[:limit]
        if messages:
            self.claims.append((made, messages))

    def pop(self, choice: random.Random) -> None:
        count = choice.randint(1, 5)
        assert bodies(self.queue.pop(count)) == self.due[:count]
        del self.due[:count]

    def finish(self, choice: random.Random) -> None:
        if self.claims:
            _, messages = choice.choice(self.claims)
            for number in choice.sample(sorted(messages), choice.randint(1, len(messages))):
                messages.pop(number).delete()
            self.claims = [claim for claim in self.claims if claim[1]]

    def release(self, choice: random.Random) -> None:
        if self.claims:
            made, messages = self.claims.pop(choice.randrange(len(self.claims)))
            made.delete()
            self.due = sorted([*self.due, *messages])

    def delete(self, choice: random.Random) -> None:
        """Delete some by their ids, which needs no claim."""
        numbers = choice.sample([*self.due, *self.far, *self.claimed], choice.randint(0, min(3, self.total)))
        if numbers:
            self.queue.delete_messages(*(self.ids[number] for number in numbers))
            self.due = [number for number in self.due if number not in numbers]
            self.far = [number for number in self.far if number not in numbers]
            for _, messages in self.claims:
                for number in numbers:
                    messages.pop(number, None)
            self.claims = [claim for claim in self.claims if claim[1]]

    def purge(self, choice: random.Random) -> None:
        """Delete all that no claim holds."""
        if choice.random() < 0.3:
            self.queue.purge()
            self.due, self.far = [], []

    def extend(self, choice: random.Random) -> None:
        if self.claims:
            made, messages = choice.choice(self.claims)
            made.update(ttl=choice.randint(60, 600), grace=60)
            assert bodies(self.queue.claim(id=made.id)) == sorted(messages)

    def check(self, choice: random.Random) -> None:
        limit = choice.randint(3, 20)

        def listed(**parameters: Any) -> list[int]:
            return bodies(self.queue.messages(echo=True, limit=limit, **parameters).stream())

        assert listed() == self.due
        assert sorted(listed(include_claimed=True)) == sorted([*self.due, *self.claimed])
        assert sorted(listed(include_delayed=True)) == sorted([*self.due, *self.far])
        counts = self.queue.stats["messages"]
        assert counts["claimed"] == len(self.claimed)
        assert counts["total"] == self.total


@pytest.mark.parametrize("seed", [1])
def test_a_queue_holds_what_its_clients_have_left_in_it(client: Client, seed: int) -> None:
    choice = random.Random(seed)
    checked = CheckedQueue(client)
    steps: list[Callable[[random.Random], None]] = [
        checked.post, checked.post, checked.claim, checked.claim, checked.pop, checked.finish, checked.finish,
        checked.release, checked.delete, checked.purge, checked.extend,
    ]  # fmt: skip
    for _ in range(STEPS):
        choice.choice(steps)(choice)
        checked.check(choice)

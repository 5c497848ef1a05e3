"""Signed deliveries: the bytes that arrive are those that were signed, with the secrets that sign at that moment."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from standardwebhooks.webhooks import WebhookVerificationError

from later.core.origin import Origin
from later.core.policy import Sign
from later.core.retry import OutcomeKind
from later.core.signing import (
    KeyRing,
    Master,
    Secret,
    SecretScope,
    SigningContext,
    derive_secret,
    format_signatures,
    secret_scope,
)
from later.core.task import Task
from later.delivery.http_client import LocalFault
from later.delivery.signer import MAX_INLINE_BYTES, MAX_PREPARED, Signer
from tests.builders import NOW, a_task
from tests.core.test_signing import verify
from tests.receivers import DONE, Connection, PolicySender, Receiver, a_sender, parse_headers

MASTER, OTHER = Master(bytes(range(32))), Master(bytes(32))
DEFAULT = SecretScope(Sign.NAMESPACE, "default")
HOUR_MS = 3_600_000


class Recorder:
    """A receiver that keeps what arrives, and answers done."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []

    async def __call__(self, connection: Connection) -> None:
        while True:
            head, body = await connection.read_request()
            self.received.append((parse_headers(head), body))
            await connection.write(DONE)

    def verify(self, secret: Secret) -> object:
        """Verify the last call as a receiver does."""
        headers, body = self.received[-1]
        return verify(secret.text, headers, body)


class Keys:
    """The key ring of a signer, which a test may replace."""

    def __init__(self) -> None:
        self.ring = KeyRing([MASTER])

    def __call__(self) -> KeyRing:
        return self.ring

    def rotate(self, scope: SecretScope = DEFAULT, now: int = NOW, overlap_ms: int = HOUR_MS) -> None:
        self.ring = self.ring.replace({scope: self.ring.rotate(scope, now, overlap_ms)})


async def send(sender: PolicySender, task: Task, now: int = NOW) -> None:
    assert (await sender.send(task, 1, now)).kind is OutcomeKind.DONE


def contents() -> list[str]:
    return ["", "größe", '"\\\u2028\x01', "x" * (MAX_INLINE_BYTES + 1), "é" * 1_500_000]


@pytest.mark.usefixtures("client")
async def test_the_bytes_that_arrive_are_those_that_were_signed() -> None:
    keys, recorder = Keys(), Recorder()
    keys.rotate()
    new, old = keys.ring.secrets(DEFAULT, NOW)
    async with Receiver(recorder).listen() as receiver, a_sender(key_ring=keys) as sender:
        for content in contents():
            task = a_task(callback=receiver.url, topic="größe ", content=content, id="a.b")
            await send(sender, task)
            for secret in (new, old):
                assert recorder.verify(secret) == {"id": "a.b", "topic": task.topic, "content": content}
            with pytest.raises(WebhookVerificationError):
                recorder.verify(derive_secret(OTHER, DEFAULT, 1))


async def test_each_attempt_is_signed_with_its_own_time() -> None:
    keys, recorder = Keys(), Recorder()
    async with Receiver(recorder).listen() as receiver, a_sender(key_ring=keys) as sender:
        task = a_task(callback=receiver.url)
        for now in (NOW, NOW + HOUR_MS):
            await send(sender, task, now)
            headers, body = recorder.received[-1]
            assert headers["webhook-timestamp"] == str(now // 1000)
            assert verify(derive_secret(MASTER, DEFAULT, 1).text, headers, body, now // 1000)


async def test_a_secret_signs_to_the_end_of_its_overlap_and_not_one_delivery_longer() -> None:
    keys, recorder = Keys(), Recorder()
    async with Receiver(recorder).listen() as receiver, a_sender(key_ring=keys) as sender:
        task = a_task(callback=receiver.url)
        numbers = []
        for now in (NOW - 1, NOW + HOUR_MS - 1, NOW + HOUR_MS):
            await send(sender, task, now)
            numbers.append(len(recorder.received[-1][0]["webhook-signature"].split()))
            if now < NOW:
                keys.rotate()
        assert numbers == [1, 2, 1]


async def test_without_a_key_and_with_sign_off_there_is_no_signature() -> None:
    keys, recorder = Keys(), Recorder()
    async with (
        Receiver(recorder).listen() as receiver,
        a_sender(key_ring=keys, sign=Sign.OFF) as off,
        a_sender() as without_key,
    ):
        for sender in (off, without_key):
            await send(sender, a_task(callback=receiver.url))
    assert not [headers for headers, _ in recorder.received if "webhook-signature" in headers]


async def test_with_origin_each_receiver_of_a_namespace_has_a_secret_of_its_own() -> None:
    keys, first, second = Keys(), Recorder(), Recorder()
    async with (
        Receiver(first).listen() as one,
        Receiver(second).listen() as other,
        a_sender(key_ring=keys, sign=Sign.ORIGIN) as sender,
    ):
        for receiver in (one, other):
            await send(sender, a_task(callback=f"{receiver.url}/x"))
        secret = derive_secret(MASTER, secret_scope(Sign.ORIGIN, "order", Origin.of(one.url)), 1)
        assert first.verify(secret)
        with pytest.raises(WebhookVerificationError):
            second.verify(secret)


async def test_a_delivery_whose_secret_cannot_be_derived_is_not_made() -> None:
    keys, recorder = Keys(), Recorder()
    keys.rotate()
    keys.ring = KeyRing([OTHER], keys.ring.rotated)
    async with Receiver(recorder).listen() as receiver, a_sender(key_ring=keys) as sender:
        with pytest.raises(LocalFault, match=f"the signing key {MASTER.fingerprint} is missing"):
            await sender.send(a_task(callback=receiver.url), 1, NOW)
        await send(sender, a_task(callback=receiver.url, topic="shop/order"))  # another namespace: never rotated
    assert len(recorder.received) == 1


async def test_a_long_body_is_signed_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, recorder, threads = Keys(), Recorder(), list[bool]()

    def record(contexts: Sequence[SigningContext], task_id: str, timestamp: int, body: bytes) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return format_signatures(contexts, task_id, timestamp, body)

    monkeypatch.setattr("later.delivery.signer.format_signatures", record)
    monkeypatch.setattr("later.delivery.sender.format_signatures", record)
    async with Receiver(recorder).listen() as receiver, a_sender(key_ring=keys) as sender:
        for content in ("x", "x" * MAX_INLINE_BYTES):
            await send(sender, a_task(callback=receiver.url, content=content))
    assert threads == [True, False]


async def test_a_machine_without_threads_is_no_fault_of_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("asyncio.to_thread", fail)
    async with a_sender(key_ring=Keys()) as sender:
        with pytest.raises(LocalFault, match="thread"):
            await sender.send(a_task(content="x" * MAX_INLINE_BYTES), 1, NOW)


def test_without_a_signing_key_no_topic_is_prepared() -> None:
    signer = Signer(KeyRing)
    assert signer.contexts(a_task(), Sign.TOPIC, NOW) == []
    assert not signer._prepared


@pytest.mark.parametrize("sign", [Sign.NAMESPACE, Sign.ORIGIN])
def test_the_topics_of_a_namespace_share_its_prepared_secrets(sign: Sign) -> None:
    signer = Signer(Keys())
    first, second, other = (signer.contexts(a_task(topic=topic), sign, NOW) for topic in ("team/a", "team/b", "c"))
    assert first is second
    assert first is not other


def test_no_more_secrets_are_kept_than_that() -> None:
    keys = Keys()
    signer = Signer(keys)
    for number in range(MAX_PREPARED + 2):
        assert signer.contexts(a_task(topic=f"t{number}"), Sign.TOPIC, NOW)
    assert len(signer._prepared) == MAX_PREPARED

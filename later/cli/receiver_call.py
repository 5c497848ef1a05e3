"""The call of `later check --verify`: sent and signed as a delivery is, but it runs no handler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import click

from later import __version__
from later.config import Config
from later.core.address_guard import AddressGuard
from later.core.errors import LaterError
from later.core.origin import Origin
from later.core.policy import Ack, Sign
from later.core.policy_scopes import namespace_from_topic, namespace_scope, topic_scope
from later.core.receiver_answer import (
    VERIFY_BODY,
    VERIFY_HEADER,
    ReceiverAnswer,
    SignatureState,
    read_receiver_answer,
)
from later.core.reply import Reply
from later.core.signing import SecretScope, SigningContext, format_signatures, origin_scope, prepare_context
from later.core.task import Task, new_id
from later.core.validation import DEFAULT_NAMESPACE, check_namespace, parse_topic
from later.daemon.certificates import read_client_tls
from later.delivery.client_settings import ClientSettings
from later.delivery.http_client import AddressRefused, BrokenReply, LocalFault, NoConnection, ProxyFailed
from later.delivery.own_client import OwnClient
from later.delivery.proxy import Proxy
from later.delivery.request import RequestBuilder
from later.store.open import Store

_REQUESTS = RequestBuilder(f"later/{__version__}")


class SecretOptions(NamedTuple):
    """The options that say whose delivery the call is to be like."""

    topic: str | None
    namespace: str | None


class ReceiverCheck(NamedTuple):
    """The result of the call: what the receiver answered, and what it does with signatures.

    `signature` is None if its answer does not say that. `scope` is whose secret has signed the call; None: none has.
    """

    answer: ReceiverAnswer
    signature: SignatureState | None
    scope: SecretScope | None

    @property
    def is_well(self) -> bool:
        return self.answer.topics is not None and not self.answer.detail

    @property
    def shown(self) -> dict[str, Any]:
        """The result as JSON."""
        topics, detail, status = self.answer
        return {
            "ok": self.is_well,
            "status": status,
            "topics": None if topics is None else [*topics],
            "signature": self.signature,
            "signed_by": None if self.scope is None else str(self.scope),
            "detail": detail,
        }


async def check_receiver(
    store: Store, config: Config, guard: AddressGuard, url: str, options: SecretOptions
) -> ReceiverCheck:
    """Ask the receiver at a URL which topics it handles, and whether it verifies signatures.

    Raises:
        StoreDown: the store cannot be reached.
        MissingMaster: the secret of the call cannot be derived.
        UsageError: each topic has a secret of its own, and none is named.
        LaterError: this machine cannot make the call.
    """
    scope = await _secret_scope(store, url, options)
    now = (await store.time.now()).low
    secrets = [] if scope is None else (await store.signing.read()).secrets(scope, now)
    contexts = [prepare_context(secret) for secret in secrets]
    async with _open_client(config, guard) as client:
        answer = await _ask(client, url, contexts, now, config.policy.timeout_ms)
        state = None if contexts else SignatureState.NONE
        if contexts and answer.status == 401:
            state = SignatureState.REFUSED
        elif contexts and answer.topics is not None:
            unsigned = await _ask(client, url, [], now, config.policy.timeout_ms)
            state = SignatureState.IGNORED if unsigned.topics is not None else SignatureState.VERIFIED
    topic = None if options.topic is None else parse_topic(options.topic)
    if topic is not None and answer.topics and topic not in answer.topics:
        answer = answer._replace(detail=f"the receiver has no handler for {topic}, whose tasks would wait")
    return ReceiverCheck(answer, state, scope if contexts else None)


async def _secret_scope(store: Store, url: str, options: SecretOptions) -> SecretScope | None:
    """Return whose secret signs such a delivery by the policies; None if none does."""
    policies = await store.policies.read()
    if options.topic is not None:
        topic = parse_topic(options.topic)
        scope = topic_scope(topic)
        namespace = namespace_from_topic(topic)
    else:
        topic, namespace = None, check_namespace(options.namespace or DEFAULT_NAMESPACE)
        scope = namespace_scope(namespace)
    sign = policies.for_scope(scope).sign
    if sign is Sign.TOPIC and topic is None:
        raise click.UsageError(f"Each topic of the namespace {namespace} has a secret of its own: name one by --topic.")
    if sign is Sign.ORIGIN:
        return origin_scope(namespace, Origin.of(url))
    return None if sign is Sign.OFF else SecretScope(sign, topic if sign is Sign.TOPIC and topic else namespace)


@asynccontextmanager
async def _open_client(config: Config, guard: AddressGuard) -> AsyncIterator[OwnClient]:
    proxy = None if config.proxy is None else Proxy.parse(config.proxy)
    tls = read_client_tls(config.ca, config.receivers)
    client = OwnClient(ClientSettings(max_lookups=1, max_idle=0, guard=guard, proxy=proxy, tls=tls))
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def _ask(
    client: OwnClient, url: str, contexts: Sequence[SigningContext], now: int, timeout_ms: int
) -> ReceiverAnswer:
    reply = await _call(client, url, contexts, now, timeout_ms)
    return reply if isinstance(reply, ReceiverAnswer) else read_receiver_answer(reply, is_signed=bool(contexts))


async def _call(
    client: OwnClient, url: str, contexts: Sequence[SigningContext], now: int, timeout_ms: int
) -> Reply | ReceiverAnswer:
    id = new_id()
    task = Task(
        id=id, own_id=False, topic="", callback=url, content="", headers={VERIFY_HEADER: "1"}, max_retry=0,
        created_at=now, execute_at=now, expires_at=None,
    )  # fmt: skip
    signature = format_signatures(contexts, id, now // 1000, VERIFY_BODY)
    request = _REQUESTS.build(task, 1, 0, now, timeout_ms, VERIFY_BODY, signature)
    try:
        return await client.post(request, timeout_ms / 1000, Ack.AUTO)
    except TimeoutError:
        return ReceiverAnswer(None, f"the receiver gave no complete answer within {timeout_ms / 1000:g} s")
    except AddressRefused as error:
        return ReceiverAnswer(None, f"the call was refused: {error.refusal.message}")
    except NoConnection as error:
        return ReceiverAnswer(
            None, f"the receiver cannot be reached: {error}: does the application run, and listen there?"
        )
    except (BrokenReply, ProxyFailed) as error:
        return ReceiverAnswer(None, f"the receiver gave no complete answer: {error}")
    except LocalFault as error:
        raise LaterError(str(error)) from None

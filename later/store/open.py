"""The store as one bundle of parts, and the ways to open it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass
from functools import partial

from later.address_types import Address
from later.core.clock import Clock, StoreTime
from later.core.errors import StoreEmpty
from later.core.past_failures import MAX_FAILURES
from later.core.policy import DEFAULT_POLICY, Policy
from later.store.audit_trail import AuditTrail
from later.store.away_shards import AwayShards
from later.store.bulk_jobs import BulkJobs
from later.store.claim_records import ClaimRecords
from later.store.client import LayoutChanged, StoreClient
from later.store.cluster_client import connect_client, is_cluster
from later.store.cursor import Listing
from later.store.dead_letter_topics import DeadLetterTopics
from later.store.dead_letters import DeadLetters
from later.store.doctor import Doctor
from later.store.due_notices import DueNotices
from later.store.durability_waits import DurabilityWaits
from later.store.edits import Edits
from later.store.event_book import EventBook
from later.store.expiry import Expiry
from later.store.follow_ups import FollowUps
from later.store.forecasts import Forecasts
from later.store.history import HistoryStore
from later.store.instances import InstanceBook
from later.store.job_list import JobList
from later.store.key_book import KeyBook
from later.store.keys import Keys
from later.store.lookup import Lookup
from later.store.maintenance import Maintenance
from later.store.moved_clock import MovedClock, read_moved
from later.store.origin_holds import OriginHolds
from later.store.permits import Permits
from later.store.policies import PolicyBook
from later.store.pulls import Pulls
from later.store.queue_book import QueueBook
from later.store.scan import Scanner
from later.store.schedules import Schedules
from later.store.schema import (
    KNOWN_NEEDS,
    MOST_IN_CLUSTER,
    MOVED_CLOCK,
    Execute,
    Layout,
    check_new_shards,
    check_store,
    stored_layout,
)
from later.store.session_secret import SessionSecret
from later.store.settings import StoreSettings
from later.store.shard_workers import ShardWorkers
from later.store.signing_book import SigningBook
from later.store.snapshots import Snapshots
from later.store.stats import Stats
from later.store.tasks import Tasks
from later.store.topic_index import TopicIndex
from later.store.upserts import Upserts


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """An open store: one client, and a part for each group of verbs."""

    client: StoreClient
    away_shards: AwayShards
    clock: Clock
    time: StoreTime
    keys: Keys
    tasks: Tasks
    pulls: Pulls
    claim_records: ClaimRecords
    due_notices: DueNotices
    durability_waits: DurabilityWaits
    lookup: Lookup
    edits: Edits
    upserts: Upserts
    listing: Listing
    dead_letters: DeadLetters
    dead_letter_topics: DeadLetterTopics
    follow_ups: FollowUps
    expiry: Expiry
    bulk_jobs: BulkJobs
    job_list: JobList
    stats: Stats
    history: HistoryStore
    snapshots: Snapshots
    forecasts: Forecasts
    instances: InstanceBook
    shard_workers: ShardWorkers
    moved_clock: MovedClock
    topic_index: TopicIndex
    maintenance: Maintenance
    permits: Permits
    origin_holds: OriginHolds
    policies: PolicyBook
    queues: QueueBook
    key_book: KeyBook
    session_secret: SessionSecret
    audit_trail: AuditTrail
    signing: SigningBook
    schedules: Schedules
    events: EventBook
    scanner: Scanner
    doctor: Doctor
    keep_failures: int
    """The failures that are kept of a task, with the last one."""

    async def aclose(self) -> None:
        await self.client.aclose()


def build_store(
    client: StoreClient,
    clock: Clock,
    keys: Keys,
    policy: Policy,
    instance: str = "",
    count_follow_ups: Callable[[str, int], None] = lambda field, count: None,
    *,
    keep_failures: int = MAX_FAILURES,
    policy_grace_s: float = 0.0,
) -> Store:
    """Build all parts on one client.

    `policy` applies where nothing is set; `instance` is the name under which this process takes permits;
    `count_follow_ups` is as in `FollowUps`. While the node of the policies, keys and rotations is away, those that were
    read last are good for `policy_grace_s`.
    """
    policies = PolicyBook(client, keys, policy, clock.monotonic, policy_grace_s)
    due_notices = DueNotices(client, keys, policies)
    tasks, lookup, expiry = Tasks(client, keys, due_notices), Lookup(client, keys), Expiry(client, keys)
    follow_ups = FollowUps(client, keys, tasks, expiry, due_notices, count_follow_ups)
    dead_letter_topics = DeadLetterTopics(client, keys, lookup, expiry, due_notices, follow_ups)
    pulls = Pulls(
        client,
        keys,
        tasks=tasks,
        lookup=lookup,
        dead_letter_topics=dead_letter_topics,
        follow_ups=follow_ups,
        policies=policies,
        due_notices=due_notices,
        keep_failures=keep_failures,
    )
    time = StoreTime(clock, partial(client.execute_timed, "time", []))
    stats, topic_index, dead_letters = Stats(client, keys), TopicIndex(client, keys), DeadLetters(client, keys)
    bulk_jobs = BulkJobs(client, keys)
    return Store(
        client=client,
        away_shards=AwayShards(client, keys),
        clock=clock,
        time=time,
        keys=keys,
        tasks=tasks,
        pulls=pulls,
        claim_records=ClaimRecords(client, keys, pulls, lookup, expiry),
        due_notices=due_notices,
        durability_waits=DurabilityWaits(client, keys, clock.monotonic),
        lookup=lookup,
        edits=Edits(client, keys, dead_letter_topics),
        upserts=Upserts(client, keys, lookup),
        listing=Listing(client, keys),
        dead_letters=dead_letters,
        dead_letter_topics=dead_letter_topics,
        follow_ups=follow_ups,
        expiry=expiry,
        bulk_jobs=bulk_jobs,
        job_list=JobList(client, keys, bulk_jobs),
        stats=stats,
        history=HistoryStore(client, keys),
        snapshots=Snapshots(client, keys),
        forecasts=Forecasts(client, keys),
        instances=InstanceBook(client, keys),
        shard_workers=ShardWorkers(client, keys),
        moved_clock=MovedClock(client, keys, clock),
        topic_index=topic_index,
        maintenance=Maintenance(client, keys, topic_index),
        permits=Permits(client, keys, instance),
        origin_holds=OriginHolds(client, keys),
        policies=policies,
        queues=QueueBook(client, keys, policies, stats, topic_index, dead_letters),
        key_book=KeyBook(client, keys, clock.monotonic, lambda: clock.moved_ms, policy_grace_s),
        session_secret=SessionSecret(client, keys, clock.monotonic, policy_grace_s),
        audit_trail=AuditTrail(client, keys, clock),
        signing=SigningBook(client, keys, clock.monotonic, time.now, policy_grace_s),
        schedules=Schedules(client, keys),
        events=EventBook(client, keys),
        scanner=Scanner(client, keys),
        doctor=Doctor(client, keys),
        keep_failures=keep_failures,
    )


def connect_store(
    settings: StoreSettings,
    shards: int,
    clock: Clock,
    policy: Policy,
    instance: str,
    observer: Callable[[str], Callable[[float], None]],
    after_check: Callable[[Execute], Awaitable[None]] | None = None,
    *,
    count_follow_ups: Callable[[str, int], None] = lambda field, count: None,
    count_failover: Callable[[], None] = lambda: None,
    note_clock_jump: Callable[[float], None] = lambda seconds: None,
    moves_clock: bool = False,
    keep_failures: int = MAX_FAILURES,
    policy_grace_s: float = 0.0,
) -> Store:
    """Return a store that is checked, and that need not be running yet.

    It is checked before the first command on each server: nothing is written to a store that cannot serve. After that,
    but still before the first command, `after_check` runs. With `moves_clock`, it is a store whose clock is moved.
    `note_clock_jump` is called as `note_jump` of `connect`.
    """

    in_cluster = is_cluster(settings.url)
    if in_cluster and shards > MOST_IN_CLUSTER:
        check_new_shards(shards)
    keys = Keys(settings.prefix, shards, tags=2 if in_cluster else 1)

    def use_layout(layout: Layout) -> None:
        if layout.tags != keys.tags:
            keys.use_tags(layout.tags)
            raise LayoutChanged

    async def check(execute: Execute) -> str:
        server = await check_store(
            execute, settings.prefix, shards, moves_clock=moves_clock, in_cluster=in_cluster, use_layout=use_layout
        )
        if moves_clock:
            clock.set_moved(await read_moved(execute, settings.prefix))
        if after_check is not None:
            await after_check(execute)
        return server

    client = connect_client(
        settings, clock, observer=observer, check=check, count_failover=count_failover, note_jump=note_clock_jump
    )
    if client.sentinels is not None:

        async def count(before: Address, now: Address) -> None:
            count_failover()

        client.sentinels.on_failover.append(count)
    return build_store(
        client,
        clock,
        keys,
        policy,
        instance,
        count_follow_ups,
        keep_failures=keep_failures,
        policy_grace_s=policy_grace_s,
    )


async def open_store(
    settings: StoreSettings,
    clock: Clock,
    policy: Policy,
    default_shards: int,
    known_needs: Set[str] = KNOWN_NEEDS | {MOVED_CLOCK},
) -> Store:
    """Open the store, of whatever server. It has the shards of its data, or `default_shards` if there is no data.

    It may be that of a `later dev`, if that is among the `known_needs`: then its time is the one to which the clock is
    moved by now.

    Raises:
        StoreMismatch: this version of later cannot use the data.
        StoreDown: the store cannot be reached.
    """
    client, in_cluster = connect_client(settings, clock), is_cluster(settings.url)
    try:
        stored = await stored_layout(client.execute_each, settings.prefix, known_needs, in_cluster=in_cluster)
        if stored is not None:
            clock.set_moved(await read_moved(client.execute_each, settings.prefix))
    except BaseException:
        await client.aclose()
        raise
    shards, tags = (default_shards, 2 if in_cluster else 1) if stored is None else stored
    return build_store(client, clock, Keys(settings.prefix, shards, tags), policy)


async def open_existing_store(settings: StoreSettings, clock: Clock) -> Store:
    """Open a store that a daemon has laid out. Policies are those in the store, over later's defaults.

    It is checked, and so is each other server to which its address leads later, as a daemon's store is.

    Raises:
        StoreEmpty: the store holds nothing of later.
        StoreMismatch: its data is of another version, or is not safe there.
        StoreDown: the store cannot be reached.
    """
    unchecked = await open_store(settings, clock, DEFAULT_POLICY, default_shards=0)
    await unchecked.aclose()
    shards = len(unchecked.keys.shards)
    if not shards:
        raise StoreEmpty(
            f'there is nothing of later\'s in the store (its keys would begin with "{settings.prefix}"): start a '
            "daemon on it first, which lays its data out"
        )
    store = connect_store(settings, shards, clock, DEFAULT_POLICY, "", lambda verb: lambda seconds: None)
    try:
        await store.client.open()
    except BaseException:
        await store.aclose()
        raise
    return store

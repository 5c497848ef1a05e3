"""The API of a daemon whose tasks are those of a virtual clock: it answers the calls of the clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from later.api.batch_body import NDJSON, split_items
from later.api.problem_types import problem_type
from later.api.requests import (
    DEATH_FIELDS,
    EXPECTED,
    ListRequest,
    PurgeRequest,
    RedriveRequest,
    check_reason,
    check_redrive_request,
    check_run_now_request,
    parse_delete_request,
    parse_explain_request,
    parse_id,
    parse_ids,
    parse_list_request,
    parse_purge_request,
    parse_redrive_request,
    parse_run_now_request,
    parse_update_request,
)
from later.client.answers import Enqueued
from later.client.call import ProblemDetails
from later.client.http import NO_SUCH_PATH, ApiReply
from later.core.admit import admit, resolve_durability
from later.core.caller import ANYBODY
from later.core.clock import rfc3339
from later.core.durability import PRIMARY, parse_durability
from later.core.errors import ConfigError, Conflict, InFlight, LaterError, NotFound, Refused
from later.core.explain import TaskFacts, TopicFacts, explain_task, explain_topic
from later.core.held import Held, find_hold
from later.core.if_exists import creation_of
from later.core.json_body import parse_draft, parse_object
from later.core.policy import MIN_RATE, format_policy, parse_policy_fields
from later.core.policy_scopes import (
    NO_SETTINGS,
    Level,
    PolicyScope,
    Settings,
    namespace_from_topic,
    namespace_scope,
    topic_scope,
)
from later.core.policy_warnings import dead_letter_warning, follow_up_warning
from later.core.snapshot import CountedTopic
from later.core.task import new_id
from later.core.task_view import DEAD, failure_views, last_error_view, listed_view, task_view
from later.core.topic_view import topic_view
from later.core.validation import MAX_AHEAD_MS, check_namespace, format_value, parse_time, parse_topic, refusal
from later.testing.virtual_delivery import LEASE_EXTRA_MS
from later.testing.virtual_schedules import VirtualSchedules
from later.testing.virtual_store import DELAY, ERROR, UNACK, VirtualStore, VirtualTask, origin_of

STATES = {state: (state,) for state in (DELAY, UNACK, ERROR, DEAD)} | {"pending": (DELAY, UNACK, ERROR)}
PURGEABLE = (DELAY, ERROR, DEAD)
CONSUMER_CALLS = frozenset({"/claim", "/ack", "/nack", "/release", "/extend"})

_encode = msgspec.json.Encoder().encode


class VirtualApi:
    """The API over a store. `now` returns the time of the clock in ms."""

    def __init__(self, store: VirtualStore, schedules: VirtualSchedules, now: Callable[[], int]) -> None:
        self._store = store
        self._schedules = schedules
        self.now = now
        self._calls: dict[str, Callable[[bytes], object]] = {
            "/create": self._create,
            "/query": lambda body: task_view(self._store.find(_id(body))),
            "/delete": self._delete,
            "/update": self._update,
            "/run-now": self._run_now,
            "/redrive": self._redrive,
            "/list": self._list,
            "/explain": self._explain,
        }

    def answer(self, method: str, target: str, body: bytes) -> ApiReply:
        """Return the answer to a call; `target` is its path with its query."""
        self._store.move_time(self.now())
        try:
            answer = self._carry_out(method, target, body)
        except ConfigError:
            raise  # something is not installed
        except LaterError as error:
            problem = _problem(error)
            return ApiReply(problem.status, "", None, _encode(problem))
        return ApiReply(200, "OK", None, _encode(answer))

    def _carry_out(self, method: str, target: str, body: bytes) -> object:
        path, _, query = target.partition("?")
        if path in CONSUMER_CALLS:
            raise Refused(f"{path}: a virtual clock gives the tasks of pulled topics to their handlers by itself")
        if path in self._calls:
            return self._calls[path](body)
        if path.endswith("/batch"):
            return self._batch(path.removesuffix("/batch"), "pending=true" in query, body)
        return self._answer_by_path(method, path, query, body)

    def _answer_by_path(self, method: str, path: str, query: str, body: bytes) -> object:
        match [unquote(part) for part in path.split("/")[1:]]:
            case ["topics"]:
                return self._topics(_parameters(query))
            case ["topics", topic, *rest]:
                return self._answer_of_topic(method, parse_topic(topic), rest, query, body)
            case ["namespaces", namespace, "policy"]:
                return self._policy(method, namespace_scope(check_namespace(namespace)), query, body)
            case ["schedules"]:
                return self._schedules.page(_parameters(query).get("namespace"), self.now())
            case ["schedules", id, *rest]:
                return self._answer_of_schedule(method, id, rest, body)
        raise NotFound("", text=NO_SUCH_PATH)

    def _answer_of_topic(self, method: str, topic: str, path: list[str], query: str, body: bytes) -> object:
        match path:
            case []:
                return self._topic(topic)
            case ["policy"]:
                return self._policy(method, topic_scope(topic), query, body)
            case ["pause" | "resume" as verb]:
                return self._pause(topic_scope(topic), verb)
            case ["purge"]:
                return self._purge(topic, body)
        raise NotFound("", text=NO_SUCH_PATH)

    def _answer_of_schedule(self, method: str, id: str, path: list[str], body: bytes) -> object:
        match method, path:
            case "PUT", []:
                return self._schedules.put(id, body, self.now())
            case "GET", []:
                return self._schedules.show(id, self.now())
            case "DELETE", []:
                return self._schedules.delete(id)
            case "POST", ["pause" | "resume" as verb]:
                return self._schedules.set_paused(id, verb == "pause")
            case "POST", ["run-now"]:
                return self._schedules.run_now(id, self.now())
        raise NotFound("", text=NO_SUCH_PATH)

    # Tasks

    def _create(self, body: bytes) -> Enqueued:
        draft, policies, now = parse_draft(body), self._store.policies, self.now()
        task = admit(draft, policies, now, new_id())
        level = resolve_durability(draft.durability, policies.for_topic(task.topic))
        enqueued = self._store.create(creation_of(draft, task, policies), now)
        return msgspec.structs.replace(enqueued, durability=str(level))  # memory is as durable as anybody asks

    def _delete(self, body: bytes) -> object:
        name, level = parse_delete_request(body, ANYBODY)
        return msgspec.structs.replace(self._store.delete(name), durability=str(level))

    def _update(self, body: bytes) -> object:
        changes = parse_update_request(body)
        if changes.id is None:
            raise refusal("id", None)
        id = ANYBODY.task_name(changes.id)
        changes.require_any()
        return self._changed(lambda: self._store.update(id, changes, self.now()), changes.durability)

    def _changed(self, change: Callable[[], VirtualTask], durability: str | None) -> object:
        """Change a task, and return its view with the level that was asked for, if it is above `primary`."""
        level = parse_durability(durability)
        view = task_view(change())
        return view if level is PRIMARY else msgspec.structs.replace(view, durability=level)

    def _batch(self, path: str, pending_only: bool, body: bytes) -> object:
        calls: dict[str, Callable[[bytes], object]] = {
            "/create": self._create,
            "/query": self._calls["/query"],
            "/delete": lambda item: self._store.delete(_id(item), pending_only=pending_only),
        }
        if path not in calls:
            raise NotFound("", text=NO_SUCH_PATH)
        results: list[object] = []
        for item in split_items(body, NDJSON):
            try:
                results.append(calls[path](item))
            except LaterError as error:
                results.append({"error": _problem(error)})
        return {"results": results}

    def _list(self, body: bytes) -> object:
        request = parse_list_request(body)
        topic, death_fields = parse_topic(request.topic), _death_fields(request)
        state = request.state if request.state is not None else DEAD if death_fields else DELAY
        if state not in STATES:
            raise refusal("state", state, EXPECTED["state"])
        if death_fields and state != DEAD:
            text = f'{death_fields[0]}: expected it with the state "dead", got {format_value(state)}'
            raise Refused(text, death_fields[0])
        tasks = self._select(topic, STATES[state], request)
        return {"tasks": [listed_view(task) for task in tasks], "cursor": None}

    def _run_now(self, body: bytes) -> object:
        request = parse_run_now_request(body)
        check_run_now_request(request)
        if request.ids is not None:
            return _move_each(request.ids, lambda name: self._store.run_now(name, self.now()))
        name = ANYBODY.task_name(request.id or "")
        return self._changed(lambda: self._store.run_now(name, self.now()), request.durability)

    def _redrive(self, body: bytes) -> object:
        request = parse_redrive_request(body)
        check_redrive_request(request)
        if request.ids is not None:
            return _move_each(request.ids, lambda name: self._store.redrive(name, self.now()))
        if request.id is not None:
            self._store.redrive(ANYBODY.task_name(request.id), self.now())
            return {"redriven": 1}
        dead = self._select(parse_topic(request.topic), (DEAD,), request)
        if request.rate is not None and not request.rate >= MIN_RATE:
            raise refusal("rate", request.rate, EXPECTED["rate"])
        pause_ms = 0 if request.rate is None else 1000 / request.rate
        for number, task in enumerate(dead):
            self._store.redrive(task.id, self.now(), self.now() + min(int(number * pause_ms), MAX_AHEAD_MS))
        return {"redriven": len(dead)}

    def _purge(self, topic: str, body: bytes) -> object:
        request = parse_purge_request(body) if body.strip() else PurgeRequest()
        if request.states is not None and not request.states:
            raise Refused(f"states: expected {EXPECTED['states']}, got none", "states")
        for state in request.states or ():
            if state == UNACK:
                text = 'states: expected none but "delay", "error" and "dead": what is in flight stays'
                raise Refused(text, "states")
            if state not in PURGEABLE:
                raise refusal("states", state, EXPECTED["states"])
        death_fields = _death_fields(request)
        states = tuple(request.states or ((DEAD,) if death_fields else PURGEABLE))
        if death_fields and {*states} != {DEAD}:
            text = f'{death_fields[0]}: expected it with "states": ["dead"] alone, because only the dead have died'
            raise Refused(text, death_fields[0])
        found = self._select(topic, states, request)
        for task in found:
            self._store.delete(task.id)
        return {"purged": len(found)}

    def _select(
        self, topic: str, states: tuple[str, ...], request: ListRequest | RedriveRequest | PurgeRequest
    ) -> list[VirtualTask]:
        """Return the tasks of a topic in these states that a request chooses by their times and reasons."""
        reason = check_reason(request.reason)
        since, before = _time(request, "due_after", "died_after"), _time(request, "due_before", "died_before")
        return [
            task
            for task in self._store.select(topic, states)
            if (since is None or task.due_at >= since)
            and (before is None or task.due_at < before)
            and (reason is None or (task.failure is not None and task.failure.reason == reason))
        ]

    # Explanations

    def _explain(self, body: bytes) -> object:
        request = parse_explain_request(body)
        if (request.id is None) == (request.topic is None):
            got = "neither" if request.id is None else "both"
            raise Refused(f"id: expected either an id or a topic, got {got}", "id")
        now = self.now()
        if request.id is None:
            sentence, details = explain_topic(self._topic_facts(parse_topic(request.topic)), now)
            return {"sentence": sentence, **details}
        found = self._store.find(ANYBODY.task_name(request.id))
        topic = self._topic_facts(found.topic)
        origin = origin_of(found.task, topic.policy)
        facts = TaskFacts(
            id=found.id,
            state=found.state,
            score=found.due_at,
            attempts=found.attempts,
            failure=found.failure,
            task=found.task,
            lease_ms=topic.policy.timeout_ms + LEASE_EXTRA_MS,
            origin=None if origin is None else origin.authority,
            origin_held_until=None if origin is None else self._store.holds.get((found.topic, origin)),
        )
        sentence, details = explain_task(facts, topic, now)
        return {
            "sentence": sentence,
            **details,
            "last_error": last_error_view(found.failure, found.task),
            "last_failures": failure_views(found.failure, found.task) or [],
        }

    def _topic_facts(self, name: str) -> TopicFacts:
        policies, now = self._store.policies, self.now()
        counts = {state: self._store.select(name, (state,)) for state in (DELAY, UNACK, ERROR, DEAD)}
        due_times = [task.due_at for task in counts[DELAY]]
        policy = policies.for_topic(name)
        return TopicFacts(
            name=name,
            policy=policy,
            delay=len(counts[DELAY]),
            unack=len(counts[UNACK]),
            error=len(counts[ERROR]),
            dead=len(counts[DEAD]),
            due=sum(due_at <= now for due_at in due_times),
            oldest_due_at=min((due_at for due_at in due_times if due_at <= now), default=None),
            next_due_at=min(due_times, default=None),
            paused=policy.paused,
            held_until=None,
            full_speed_at=None,
            workers=1,
            last_heartbeat_at=now,
            origin_holds={o.authority: until for (topic, o), until in self._store.holds.items() if topic == name},
            is_namespace_callback=policies.level_of(topic_scope(name), "callback") is Level.NAMESPACE,
        )

    # Topics and policies

    def _topics(self, query: dict[str, str]) -> object:
        used = {task.topic for task in self._store.tasks.values()} | {*self._store.policies.topics}
        namespace = query.get("namespace")
        names = sorted(name for name in used if namespace in (None, namespace_from_topic(name)))
        return {"topics": [self._topic(name) for name in names], "cursor": None}

    def _topic(self, name: str) -> dict[str, Any]:
        facts, policies, now = self._topic_facts(name), self._store.policies, self.now()
        counted = CountedTopic(
            topic=name,
            delay=facts.delay,
            unack=facts.unack,
            error=facts.error,
            dead=facts.dead,
            due=facts.due,
            oldest_due_at=facts.oldest_due_at,
            held=find_hold(facts.policy, None, facts.unack, now) if facts.due else Held.NO,
            is_paused=facts.paused,
            has_label=False,
        )
        scope = {"topic": name, "namespace": namespace_from_topic(name)}
        return scope | topic_view(counted, policies, now) | {"policy": format_policy(facts.policy)}

    def _policy(self, method: str, scope: PolicyScope, query: str, body: bytes) -> object:
        settings = self._store.policies.settings_at(scope)
        if method == "GET":
            if "applied=true" not in query:
                return settings.fields
            applied = format_policy(self._store.policies.for_scope(scope)).items()
            level_of = self._store.policies.level_of
            return {name: {"value": value, "level": level_of(scope, name)} for name, value in applied}
        if method == "DELETE":
            return self.change_settings(scope, NO_SETTINGS)
        fields = parse_policy_fields(parse_object(body))
        return self.change_settings(scope, settings.merge(fields) if method == "PATCH" else settings.replace(fields))

    def _pause(self, scope: PolicyScope, verb: str) -> object:
        policies = self._store.policies
        paused = policies.settings_at(scope).merge({"paused": True})
        self.change_settings(scope, paused if verb == "pause" else policies.settings_to_resume(scope))
        return {"topic": scope.name, "paused": self._store.policies.for_scope(scope).paused}

    def change_settings(self, scope: PolicyScope, settings: Settings) -> dict[str, Any]:
        """Set the policy of a topic or a namespace. Raises Refused."""
        policies = self._store.policies = self._store.policies.with_settings(scope, settings)
        warnings = (dead_letter_warning(policies, scope), follow_up_warning(policies, scope))
        warning = " ".join(text for text in warnings if text)
        return {**settings.fields, **({"warning": warning} if warning else {})}


def _parameters(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


def _death_fields(request: ListRequest | PurgeRequest) -> list[str]:
    """Return the fields of a request that choose among dead tasks."""
    return [field for field in DEATH_FIELDS if getattr(request, field) is not None]


def _time(request: object, due: str, died: str) -> int | None:
    """Return the time (ms) in one of two fields, which mean the same for dead tasks. Raises Refused."""
    given = [field for field in (due, died) if getattr(request, field, None) is not None]
    if len(given) > 1:
        raise Refused(f"{died}: expected either {due} or {died}, got both", died)
    return parse_time(given[0], getattr(request, given[0])) if given else None


def _move_each(ids: list[str], move: Callable[[str], VirtualTask]) -> object:
    """Move the tasks of these ids, each once, and return what became of each, as the daemon answers it."""
    names = parse_ids(ids, ANYBODY)
    moved: dict[str, VirtualTask | LaterError] = {}
    for name in names:
        if isinstance(name, str) and name not in moved:
            try:
                moved[name] = move(name)
            except LaterError as error:
                moved[name] = error
    answers = [name if isinstance(name, Refused) else moved[name] for name in names]
    distinct = [*moved.values(), *(name for name in names if isinstance(name, Refused))]
    in_flight = sum(isinstance(answer, InFlight) for answer in distinct)
    return {
        "moved": sum(isinstance(answer, VirtualTask) for answer in distinct),
        "missing": sum(isinstance(answer, NotFound) for answer in distinct),
        "refused": sum(isinstance(answer, Refused | Conflict) for answer in distinct) - in_flight,
        "in_flight": in_flight,
        "failed": 0,
        "results": [
            {"error": _problem(answer)}
            if isinstance(answer, LaterError)
            else {"id": answer.id, "due_at": rfc3339(answer.due_at)}
            for answer in answers
        ],
    }


def _id(body: bytes) -> str:
    return parse_id(body, ANYBODY)


def _problem(error: LaterError) -> ProblemDetails:
    """Return an error as the daemon answers it."""
    if isinstance(error, NotFound) and not error.task_id:
        return ProblemDetails(str(error), 404)
    type = problem_type(error)
    field = error.field if isinstance(error, Refused) else None
    ended = isinstance(error, NotFound) and error.ended
    return ProblemDetails(str(error), type.status, type.reference, field=field, ended=ended)

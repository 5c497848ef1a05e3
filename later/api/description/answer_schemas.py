"""The schemas of answers: from the structs that are encoded, and by hand for those that are made of parts."""

from __future__ import annotations

import msgspec

from later.api.description.json_schema import (
    BOOLEAN,
    TIME,
    Schema,
    answer_structure,
    array,
    choice,
    integer,
    mapping,
    nullable,
    number,
    reference,
    string,
    structure,
)
from later.api.description.request_schemas import policy_field_schema
from later.api.history import MAX_SHOWN_DELIVERIES, OUTCOMES
from later.api.overview import MAX_TOPICS
from later.api.overview_views import RATES
from later.api.problems import ErrorBody, Problem
from later.api.pulsar import ACTIVE, MAX_DELAY, TICK_TIME
from later.api.response_schemas import (
    AckResponse,
    ClaimResponse,
    CreateResponse,
    DeleteResponse,
    ExtendResponse,
    JobResponse,
    JobsResponse,
    MovedTask,
    NackResponse,
    ReleaseResponse,
    StoredItemError,
)
from later.api.schedule_answers import ScheduleResponse, SchedulesResponse
from later.api.workers import MAX_WORKERS
from later.core.forecast import MAX_FORECAST_TOPICS, MAX_STEPS
from later.core.held import Held
from later.core.history import LONG, SERIES
from later.core.overview import AlertLevel
from later.core.policy import POLICY_FIELDS, Deliver
from later.core.task_view import TaskView

_STRUCTS = (
    CreateResponse,
    DeleteResponse,
    TaskView,
    JobResponse,
    JobsResponse,
    MovedTask,
    ClaimResponse,
    AckResponse,
    NackResponse,
    ReleaseResponse,
    ExtendResponse,
    ScheduleResponse,
    SchedulesResponse,
    Problem,
    ErrorBody,
    StoredItemError,
)
_TEXT = string()
_COUNT = integer(0)
_COUNTS = dict.fromkeys(("delay", "unack", "error", "dead"), _COUNT)


def answer_schemas() -> dict[str, Schema]:
    """Return the schemas of all answers, by the names of their components."""
    return {**_struct_schemas(), **_batch_schemas(), **_topic_schemas(), **_history_schemas(), **_other_schemas()}


def _struct_schemas() -> dict[str, Schema]:
    """Return the schemas that msgspec makes of structs. Times are what ends in `_at` or `_until`."""
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template="#/components/schemas/{name}")
    for schema in components.values():
        schema["description"] = " ".join(schema["description"].split())
        for name, property in schema["properties"].items():
            if name.endswith(("_at", "_until")) and property == {"type": "string"}:
                property["format"] = "date-time"
    return components


def _batch_schemas() -> dict[str, Schema]:
    """Return the schemas of batches: a result is what the call for one item answers, or an error."""
    counts = {"refused": _COUNT, "failed": _COUNT}
    item_error = answer_structure(error=reference("ErrorBody"))
    return {
        "BatchItemError": item_error,
        "BatchCreateResponse": _with_optional(
            answer_structure(created=_COUNT, existing=_COUNT, **counts, results=_change_results("CreateResponse")),
            updated=_COUNT,
            durability=_TEXT,
        ),
        "BatchQueryResponse": _with_optional(
            answer_structure(found=_COUNT, missing=_COUNT, **counts, results=_results("TaskView")), left_out=_COUNT
        ),
        "BatchDeleteResponse": _with_optional(
            answer_structure(
                deleted=_COUNT, in_flight=_COUNT, ended=_COUNT, missing=_COUNT, **counts,
                results=_change_results("DeleteResponse"),
            ),
            kept=_COUNT,
            durability=_TEXT,
        ),
        "MovedTasksResponse": _with_optional(
            answer_structure(
                moved=_COUNT, missing=_COUNT, in_flight=_COUNT, **counts, results=_change_results("MovedTask")
            ),
            durability=_TEXT,
        ),
        "RunNowAnswer": {"anyOf": [reference("TaskView"), reference("MovedTasksResponse")]},
        "RedriveAnswer": {"anyOf": [reference("MovedTasksResponse"), reference("MovedTasks")]},
        "ListResponse": answer_structure(tasks=array(reference("TaskView")), cursor=nullable(_TEXT)),
        "MovedTasks": structure(
            {
                "redriven": _COUNT,
                "purged": _COUNT,
                "more": BOOLEAN,
                "cursor": _TEXT,
                "dry_run": BOOLEAN,
                "topic": _TEXT,
                "states": mapping(_COUNT),
                "at": TIME,
                "durability": _TEXT,
            }
        ),
    }  # fmt: skip


def _topic_schemas() -> dict[str, Schema]:
    """Return the schemas of topics and policies."""
    values = {name: nullable(policy_field_schema(field)) for name, field in POLICY_FIELDS.items()}
    levels = {name: answer_structure(value=value, level=_TEXT) for name, value in values.items()}
    generation = answer_structure(generation=integer(1), since=nullable(TIME), until=nullable(TIME))
    scope = {"topic": _TEXT, "namespace": _TEXT}
    return {
        "TopicList": _with_optional(
            answer_structure(topics=array(_topic_row_schema(topic=_TEXT)), cursor=nullable(_TEXT)),
            counted_at=nullable(TIME),
            partial=BOOLEAN,
        ),
        **_forecast_schemas(),
        "Topic": _with_optional(_topic_row_schema(**scope, policy=reference("Policy")), partial=BOOLEAN),
        "Policy": structure(values),
        "Settings": structure({**values, "warning": _TEXT}),
        "AppliedPolicy": structure(levels),
        "PolicyAnswer": {"anyOf": [reference("Settings"), reference("AppliedPolicy")]},
        "Paused": structure({**scope, "paused": BOOLEAN}, ["paused"]),
        "Signing": structure({**scope, "generations": array(generation), "secret": _TEXT}, ["generations"]),
        "DelayedDeliveryAnswer": nullable(
            answer_structure(**{ACTIVE: BOOLEAN, TICK_TIME: integer(0), MAX_DELAY: integer(0)})
        ),
        "Explanation": _explanation_schema(nullable(number())),
    }


def _forecast_schemas() -> dict[str, Schema]:
    """Return the schemas of forecasts: of a topic, and of all."""
    counts = {"due": _COUNT, "counts": array(_COUNT, most=MAX_STEPS)}
    common = {"at": TIME, "from": TIME, "step_s": integer(1), **counts}
    topics = array(answer_structure(topic=_TEXT, **counts), most=MAX_FORECAST_TOPICS)
    return {
        "Forecast": _with_optional(
            answer_structure(**common, counted_at=nullable(TIME), topics=topics, topics_left_out=_COUNT),
            partial=BOOLEAN,
        ),
        "TopicForecast": answer_structure(
            topic=_TEXT,
            **common,
            rate=nullable(number(0)),
            paused=BOOLEAN,
            behind_from=nullable(TIME),
            caught_up_at=nullable(TIME),
            worst_lateness_s=nullable(number(0)),
        ),
    }


def _explanation_schema(lateness: Schema) -> Schema:
    """Return the schema of an explanation: of a topic, and what there is besides if it is that of a task."""
    of_topic = answer_structure(
        sentence=_TEXT,
        topic=_TEXT,
        counts=answer_structure(**_COUNTS),
        due=_COUNT,
        oldest_lateness_s=lateness,
        next_due_at=nullable(TIME),
        paused=BOOLEAN,
        held_until=nullable(TIME),
        workers=_COUNT,
        last_beat_s=nullable(number(0)),
        policy=reference("Policy"),
    )
    return _with_optional(
        of_topic,
        id=_TEXT,
        state=_TEXT,
        due_at=TIME,
        due_in_s=number(),
        died_at=TIME,
        dead_for_s=number(),
        attempts=_COUNT,
        failures=_COUNT,
        max_retry=nullable(_COUNT),
        callback=nullable(_TEXT),
        callback_from=nullable(_TEXT),
        origin=nullable(_TEXT),
        origin_held_until=nullable(TIME),
        expires_at=nullable(TIME),
        last_error=nullable(reference("LastErrorView")),
        last_failures=array(reference("FailureView")),
        partial=BOOLEAN,
    )


def _history_schemas() -> dict[str, Schema]:
    """Return the schemas of the history and of sampled deliveries. `off` is true where none are kept."""
    values = array(nullable(number()), most=LONG.most_slots)
    required = {"step_s": _COUNT, "from": TIME, "topic": nullable(_TEXT), "series": mapping(values, len(SERIES))}
    delivery = answer_structure(
        id=_TEXT,
        topic=_TEXT,
        attempt=_COUNT,
        due_at=TIME,
        began_at=TIME,
        took_ms=_COUNT,
        outcome=choice(OUTCOMES),
        status=nullable(integer()),
        host=nullable(_TEXT),
    )
    deliveries = array(_with_optional(delivery, reason=_TEXT), most=MAX_SHOWN_DELIVERIES)
    return {
        "History": _with_optional(answer_structure(**required), off=BOOLEAN),
        "Deliveries": _with_optional(answer_structure(sampled=BOOLEAN, deliveries=deliveries), off=BOOLEAN),
    }


def _other_schemas() -> dict[str, Schema]:
    """Return the schemas of what the daemon tells of itself."""
    limits = answer_structure(max_body=_COUNT, batch=_COUNT, page=_COUNT)
    route = answer_structure(method=_TEXT, path=_TEXT, query=array(_TEXT))
    return {
        "Overview": _overview_schema(),
        "Workers": answer_structure(at=TIME, workers=array(_worker_schema(), most=MAX_WORKERS)),
        "ScheduleId": answer_structure(id=_TEXT),
        "PausedSchedule": answer_structure(id=_TEXT, paused=BOOLEAN),
        "ClockAnswer": _with_optional(answer_structure(now=TIME, ahead=number(0)), settled=BOOLEAN, to=TIME),
        "Alive": answer_structure(status=_TEXT),
        "Ready": _with_optional(answer_structure(status=_TEXT), warning=_TEXT, shards_away=_COUNT),
        "WhoAmI": answer_structure(
            version=_TEXT,
            key=nullable(_TEXT),
            scopes=array(_TEXT),
            namespace=nullable(_TEXT),
            read_only=BOOLEAN,
            limits=limits,
        ),
        "Routes": answer_structure(name=_TEXT, version=_TEXT, routes=array(route)),
        "Version": answer_structure(version=_TEXT),
        "Description": {"type": "object", "required": ["openapi", "paths"]},
    }


def _topic_row_schema(**more: Schema) -> Schema:
    """Return the schema of a topic with its counts, what holds it, and its limits; `more` comes first."""
    return answer_structure(
        **more,
        **_COUNTS,
        due=_COUNT,
        oldest_lateness_s=nullable(number(0)),
        held=choice([held.value for held in Held]),
        paused=BOOLEAN,
        rate=nullable(number()),
        concurrency=nullable(_COUNT),
        deliver=choice([deliver.value for deliver in Deliver]),
    )


def _overview_schema() -> Schema:
    """Return the schema of an overview; a key of a namespace sees null instead of what is of all namespaces."""
    memory = nullable(_COUNT)
    store = answer_structure(
        up=BOOLEAN, name=nullable(_TEXT), version=nullable(_TEXT), memory=memory, max_memory=memory
    )
    workers = answer_structure(count=_COUNT, slots=_COUNT, slots_in_use=_COUNT, last_heartbeat_at=nullable(TIME))
    rates = answer_structure(slot_at=TIME, step_s=integer(1), **{name: number(0) for name in RATES})
    overview = answer_structure(
        at=TIME,
        counted_at=nullable(TIME),
        level=choice([level.value for level in AlertLevel]),
        sentence=_TEXT,
        topic=nullable(_TEXT),
        store=nullable(store),
        workers=nullable(workers),
        tasks=answer_structure(**_COUNTS),
        due=_COUNT,
        oldest_lateness_s=nullable(number(0)),
        oldest_held_lateness_s=nullable(number(0)),
        topics_total=_COUNT,
        topics_paused=_COUNT,
        rates=nullable(rates),
        lateness=nullable(answer_structure(p50_s=number(0), p99_s=number(0))),
        topics=array(_topic_row_schema(topic=_TEXT), most=MAX_TOPICS),
    )
    return _with_optional(overview, partial=BOOLEAN)


def _worker_schema() -> Schema:
    """Return the schema of a process of a daemon; what is null is not known, of one of another version."""
    return answer_structure(
        name=_TEXT,
        role=nullable(_TEXT),
        version=nullable(_TEXT),
        host=_TEXT,
        processes=nullable(_COUNT),
        slots=nullable(_COUNT),
        slots_in_use=nullable(_COUNT),
        since=nullable(TIME),
        last_heartbeat_at=TIME,
        clock_offset_s=nullable(number()),
        alive=BOOLEAN,
    )


def _results(*names: str) -> Schema:
    return array({"anyOf": [*map(reference, names), reference("BatchItemError")]})


def _change_results(name: str) -> Schema:
    return _results(name, "StoredItemError")


def _with_optional(schema: Schema, **properties: Schema) -> Schema:
    """Return the schema of an object that may have these properties, too."""
    return {**schema, "properties": {**schema["properties"], **properties}}

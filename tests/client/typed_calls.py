"""What type checkers accept of the clients, and what they refuse. `make type` fails if one of these errors is gone.

Nothing runs this module.
"""

from __future__ import annotations

from datetime import timedelta

from later.client import AsyncClient, Client, Enqueued, Info, ScheduleInfo, ScheduleResult, draft
from later.errors import LaterError


def call(client: Client) -> None:
    created: Enqueued = client.create("order", "hello", delay=timedelta(minutes=1), if_exists="update")
    results: list[Enqueued | LaterError] = client.create_many([draft("order", delay="1h30m", id=created.id)])
    tasks: list[Info] = [*client.list("order", state="pending")]
    print(results, tasks)

    put: ScheduleResult = client.put_schedule("report", "report", cron="@daily", zone="Europe/Berlin")
    schedules: list[ScheduleInfo] = [*client.schedules()]
    print(put, schedules)

    client.put_schedule("report", "report", every="1h", catch_up="some")  # type: ignore[arg-type]  # wanted: no such value
    client.create("order", delay=object())  # type: ignore[arg-type]  # wanted: it is no duration
    client.create("order", if_exists="replace")  # type: ignore[arg-type]  # wanted: there is no such value
    client.create(17)  # type: ignore[arg-type]  # wanted: a topic is a text
    client.list("order", state="done")  # type: ignore[arg-type]  # wanted: there is no such state
    client.enqueue("order")  # type: ignore[attr-defined]  # wanted: there is no such method


async def call_async(client: AsyncClient) -> None:
    created: Enqueued = await client.create("order", "hello", delay=15)
    results: list[Info | LaterError] = await client.query_many([created.id])
    tasks: list[Info] = [task async for task in client.list("order")]
    print(results, tasks)

    text: str = await client.purge("order")  # type: ignore[assignment]  # wanted: it is a number
    print(client.query(text).id)  # type: ignore[attr-defined]  # wanted: it is not awaited

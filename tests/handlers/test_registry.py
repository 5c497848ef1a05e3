"""The registry of handlers: names of topics, payloads and what cannot be a handler."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from later.core.errors import HandlerExists, Refused
from later.handlers.handler import Handler
from later.handlers.parameters import Depends
from later.handlers.payload_codec import TextCodec
from later.handlers.registry import Handlers
from later.handlers.task import Task
from tests.cases import each_case

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]  # never imported


async def remind(order: int) -> None: ...


def test_a_handlers_topic_is_given_or_the_name_of_its_function() -> None:
    handlers, shop = Handlers(), Handlers(namespace="shop")
    topics = [
        handlers.handler(remind).topic,
        handlers.handler("default/other")(remind).topic,
        handlers.handler("shop/remind")(remind).topic,
        shop.handler(remind).topic,
        shop.handler("mail", aliases=["letter"])(remind).topics,
    ]
    assert topics == ["remind", "other", "shop/remind", "shop/remind", ("shop/mail", "shop/letter")]


def test_two_handlers_of_a_topic_are_refused_when_they_are_imported() -> None:
    app, shop = Handlers(), Handlers()
    app.handler("a", aliases=["b"])(remind)
    for options in ({"topic": "a"}, {"topic": "b"}, {"topic": "c", "aliases": ["b"]}, {"topic": "d", "aliases": ["d"]}):
        topic = options.pop("topic")
        with pytest.raises(HandlerExists):
            app.handler(topic, **options)(remind)  # type: ignore[call-overload]  # a table of options
    shop.handler("x")(remind)
    shop.handler("b")(remind)
    with pytest.raises(HandlerExists):
        app.include(shop)
    assert app.find("x") is None


def test_included_handlers_may_be_registered_later_and_removed() -> None:
    app, shop, mail = Handlers(), Handlers(), Handlers()
    app.include(shop)
    shop.include(mail)
    first = mail.handler("first")(remind)
    assert [*app] == [first]
    with pytest.raises(HandlerExists):
        mail.handler("first")(remind)
    app.handler("second")(remind)
    with pytest.raises(HandlerExists):
        mail.handler("second")(remind)
    assert mail.find("second") is None
    with pytest.raises(ValueError, match="include each other"):
        mail.include(app)
    assert (mail.remove(first), app.find("first"), mail.remove(first)) == (True, None, False)


def takes_two(order: int, mail: str) -> None: ...
def takes_any(*orders: int) -> None: ...
def takes_positional(order: int, /) -> None: ...
def generates() -> Any:
    yield


async def generates_async() -> AsyncIterator[None]:
    yield


class Service:
    def method(self, order: int) -> None: ...


@each_case(
    "function, text",
    [
        (takes_two, "takes_two: expected one payload, got order, mail: put them into one dataclass"),
        (takes_any, r"takes_any: expected one payload, got \*orders"),
        (takes_positional, "takes_positional: order is positional only"),
        (generates, "not a generator"),
        (generates_async, "not a generator"),
        (Service, "not a class"),
        (Service.method, "not the method Service.method"),
        (Service().method, "not the method Service.method"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_when_it_is_imported(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Handlers().handler(function)
    with pytest.raises(TypeError):
        Handlers().handler("topic")(function)


@each_case(
    "options, error",
    [
        ({"concurrency": 0}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"timeout": "soon"}, Refused),
        ({"aliases": "text"}, TypeError),
        ({"aliases": [""]}, Refused),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Handlers().handler("topic", **options)(remind)


def test_a_partial_needs_a_topic() -> None:
    work = functools.partial(takes_two, mail="x")
    with pytest.raises(TypeError, match="give the handler a topic"):
        Handlers().handler(work)


def test_types_are_resolved_when_they_are_needed() -> None:
    handlers = Handlers()

    @handlers.handler
    def later_type(order: Defined) -> None: ...

    @handlers.handler
    def missing_type(order: Missing) -> None: ...

    assert later_type.decode('{"number": 1}') == {"order": Defined(1)}
    with pytest.raises(TypeError, match=r"missing_type: the annotation 'Missing' of order cannot be resolved"):
        handlers.check()


@dataclass
class Defined:
    number: int


def test_types_of_the_functions_around_a_handler_are_resolved() -> None:
    @dataclass
    class Local:
        number: int

    def work(order: Local, task: Task[Any]) -> Local:
        return order

    handlers = Handlers()
    for handler in (handlers.handler(work), handlers.handler("other")(work)):
        assert handler.decode('{"number": 1}') == {"order": Local(1)}
        assert handler.parameters.tasks == ("task",)


def dependency(order: int) -> None: ...
def needs_dependency(value: Annotated[Any, Depends(dependency)]) -> None: ...


def test_dependencies_that_cannot_be_made_are_found_by_check() -> None:
    handlers = Handlers()
    handlers.handler(needs_dependency)
    with pytest.raises(TypeError, match="dependency: a dependency takes a Task and Depends, not order"):
        handlers.check()


def test_a_payload_without_a_codec_is_found_by_check() -> None:
    handlers = Handlers()

    @handlers.handler
    def work(order: Service | Defined) -> None: ...

    with pytest.raises(TypeError, match="work: its payload has no codec"):
        handlers.check()


def test_payloads_are_read_back_before_they_are_sent() -> None:
    handler: Handler[Any] = Handlers().handler(remind)
    assert handler.encode(17) == "17"
    for payload in ("17", None, object(), float("nan")):
        with pytest.raises(TypeError, match="remind: its handler cannot read this payload"):
            handler.encode(payload)


def test_a_handler_without_a_payload_has_no_content() -> None:
    def tick() -> None: ...

    handler: Handler[Any] = Handlers().handler(tick)
    assert (handler.encode(None), handler.decode("anything")) == ("", {})
    with pytest.raises(TypeError, match="takes no payload"):
        handler.encode(1)


def test_a_default_is_taken_where_there_is_no_content() -> None:
    def work(at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None: ...

    handler = Handlers().handler(work)
    assert handler.decode("") == {}
    assert handler.decode('"2026-02-01T00:00:00Z"') == {"at": datetime(2026, 2, 1, tzinfo=UTC)}


def test_a_codec_of_ones_own() -> None:
    handler: Handler[Any] = Handlers().handler("text", codec=TextCodec())(takes_text)
    assert (handler.encode("hello"), handler.decode("hello")) == ("hello", {"text": "hello"})
    with pytest.raises(TypeError):
        handler.encode(1)


def test_a_pydantic_model_is_read_and_written_by_its_own_methods() -> None:
    class Model:
        """The two methods of a pydantic model that are used."""

        def __init__(self, number: int) -> None:
            self.number = number

        def model_dump_json(self) -> str:
            return f'{{"number":{self.number}}}'

        @classmethod
        def model_validate_json(cls, text: str) -> Model:
            return cls(int(text.partition(":")[2].strip("}")))

    def work(order: Model) -> type[Model]:
        return Model

    def annotated(order: Annotated[Model, "an order"]) -> type[Model]:
        return Model

    for function in (work, annotated):
        handler: Handler[Any] = Handlers().handler("work")(function)
        assert handler.encode(Model(7)) == '{"number":7}'
        assert handler.decode('{"number":8}')["order"].number == 8
        with pytest.raises(TypeError, match="expected a Model, got dict"):
            handler.encode({"number": 7})


def test_the_types_of_a_partial_function_are_those_of_its_function() -> None:
    handler: Handler[Any] = Handlers().handler("at")(functools.partial(takes_text_and_time, "first"))
    assert handler.encode(datetime(2026, 11, 23, tzinfo=UTC)) == '"2026-11-23T00:00:00Z"'
    with pytest.raises(TypeError, match="Expected `datetime`, got `int`"):
        handler.encode(1)


def test_a_key_makes_an_id_that_other_languages_can_make() -> None:
    handler: Handler[Any] = Handlers().handler("shop/remind")(remind)
    # printf 'shop/remind\norder-17' | sha256sum
    assert handler.id_of("order-17") == "k-" + "7acc30ffbad060a1fbf2a98966810a77"


async def test_a_handler_is_its_function_for_a_unit_test() -> None:
    handler = Handlers().handler(takes_none)
    assert handler() == 5


def takes_text(text: str) -> None: ...


def takes_text_and_time(text: str, time: datetime) -> None: ...


def takes_none() -> int:
    return 5

"""Codecs: payloads of handlers as the content of tasks, which is text."""

from __future__ import annotations

from typing import Annotated, Any, Protocol, cast, get_args, get_origin

import msgspec


class Codec(Protocol):
    """The way in which a handler's payload is written as text. Both methods may raise any error."""

    def encode(self, payload: Any) -> str:
        """Return the text of a payload."""
        ...

    def decode(self, content: str) -> Any:
        """Return the payload of a text."""
        ...


class JsonCodec:
    """JSON by msgspec: dataclasses, attrs, TypedDicts, Structs, datetime, UUID, Decimal, Enum and plain types."""

    def __init__(self, payload_type: Any) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(payload_type).decode

    def encode(self, payload: Any) -> str:
        return self._encode(payload).decode()

    def decode(self, content: str) -> Any:
        return self._decode(content)


class PydanticCodec:
    """JSON by a pydantic model's own methods."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def encode(self, payload: Any) -> str:
        if not isinstance(payload, self._model):
            raise TypeError(f"expected a {self._model.__name__}, got {type(payload).__name__}")
        return cast("str", payload.model_dump_json())

    def decode(self, content: str) -> Any:
        return self._model.model_validate_json(content)


class TextCodec:
    """The content itself, for topics to which others send plain text."""

    def encode(self, payload: Any) -> str:
        if not isinstance(payload, str):
            raise TypeError(f"expected a str, got {type(payload).__name__}")
        return payload

    def decode(self, content: str) -> str:
        return content


def make_codec(payload_type: Any) -> Codec:
    """Return the codec of a payload of this type.

    Raises:
        TypeError: msgspec cannot read and write it.
    """
    model = get_args(payload_type)[0] if get_origin(payload_type) is Annotated else payload_type
    if hasattr(model, "model_validate_json"):  # pydantic is not imported for this
        return PydanticCodec(model)
    return JsonCodec(payload_type)

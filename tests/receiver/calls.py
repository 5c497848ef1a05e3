"""Calls as later makes them, and receivers for their tests."""

from __future__ import annotations

import json
import time
from typing import Any

from later.core.signing import Secret, format_signatures, prepare_context
from later.handlers.dispatch import HandlerDispatcher
from later.handlers.registry import Handlers
from later.receiver.receiver import Receiver
from later.receiver.signed import Signed

SECRET = Secret(b"k" * 32)


def build_call(
    topic: str = "order", content: str = "", *, secret: Secret = SECRET, age_s: float = 0, **headers: str
) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a signed call. Names of headers have `_` for `-` here."""
    body = json.dumps({"id": "t1", "topic": topic, "content": content}).encode()
    timestamp = int(time.time() - age_s)
    signed = {
        "webhook-id": "t1",
        "webhook-timestamp": str(timestamp),
        "webhook-signature": format_signatures([prepare_context(secret)], "t1", timestamp, body),
    }
    return {"content-type": "application/json", **signed, **{k.replace("_", "-"): v for k, v in headers.items()}}, body


def build_receiver(handlers: Handlers, *, signed: bool = True, state: Any = None) -> Receiver:
    keys = Signed([SECRET.text]) if signed else None
    return Receiver(handlers, HandlerDispatcher(handlers), keys, lambda: state)

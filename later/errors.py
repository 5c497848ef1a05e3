"""The errors that the Python library raises: `LaterError` is the base of them all."""

from later.core.errors import (
    CallFailed,
    ConfigError,
    Conflict,
    DurabilityMissed,
    Exists,
    HandlerExists,
    LaterError,
    LeaseLost,
    NotAllowed,
    NotConfigured,
    NotFound,
    NotKnown,
    Refused,
    TooLarge,
    Unavailable,
)

__all__ = [
    "CallFailed",
    "ConfigError",
    "Conflict",
    "DurabilityMissed",
    "Exists",
    "HandlerExists",
    "LaterError",
    "LeaseLost",
    "NotAllowed",
    "NotConfigured",
    "NotFound",
    "NotKnown",
    "Refused",
    "TooLarge",
    "Unavailable",
]

"""A scheduler for HTTP callbacks. Each public name is imported when it is first used."""

TYPE_CHECKING = False
"""True for type checkers. The module `typing` itself is not imported, so that `import later` costs nothing."""

if TYPE_CHECKING:
    from later.application import Later
    from later.handlers.control import Busy, Dead, Hold, Retry
    from later.handlers.handler import Handler
    from later.handlers.parameters import Depends
    from later.handlers.registry import Handlers
    from later.handlers.task import Task, current
    from later.in_process.store_claims import StoreClaims
    from later.receiver.signed import Signed

__all__ = [
    "Busy",
    "Dead",
    "Depends",
    "Handler",
    "Handlers",
    "Hold",
    "Later",
    "Retry",
    "Signed",
    "StoreClaims",
    "Task",
    "current",
]
__version__ = "0.1.0"

_MODULES = {
    "Busy": "later.handlers.control",
    "Dead": "later.handlers.control",
    "Depends": "later.handlers.parameters",
    "Handler": "later.handlers.handler",
    "Handlers": "later.handlers.registry",
    "Hold": "later.handlers.control",
    "Later": "later.application",
    "Retry": "later.handlers.control",
    "Signed": "later.receiver.signed",
    "StoreClaims": "later.in_process.store_claims",
    "Task": "later.handlers.task",
    "current": "later.handlers.task",
}

if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name):
        """Import a public name, and keep it (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415  # a command imports nothing before it handles signals

        try:
            value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        except ModuleNotFoundError as error:
            if name != "StoreClaims" or (error.name or "").partition(".")[0] == "later":
                raise
            raise ImportError(f"{name} needs the server: pip install 'later[server]'", name=error.name) from None
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The command `move`: moves all data to another store."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote

import click

from later.address_types import mask_url, store_url
from later.cli.console import notify
from later.cli.options import OptionParamType, config_options, examples, json_option
from later.cli.progress import ProgressBar, task_bar
from later.cli.store_access import load_config
from later.core.clock import Clock
from later.core.errors import ConfigError, StoreDown, StoreMismatch
from later.core.policy import DEFAULT_POLICY
from later.embedded import EmbeddedError, EmbeddedStore, answers_ping, holds_store, socket_url
from later.embedded.key_file import signing_key_file
from later.option_table import MOVE
from later.option_types import DEFAULT_PREFIX, prefix
from later.store.moves import Move, MoveReport, MoveState, abandon, check_source
from later.store.open import Store, connect_store, open_store
from later.store.schema import KNOWN_NEEDS, MOVED, MOVING
from later.store.settings import StoreSettings

MOVE_FROM, MOVE_TO = "LATER_MOVE_FROM", "LATER_MOVE_TO"
"""The variables of the two URLs, which keep their passwords from the list of processes."""
CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")
CLUSTER_SHARDS = 256
"""Shards of a new store in a cluster, unless --to-shards says otherwise."""
TELL_EVERY_S = 10.0
"""How often the progress is told where no bar is shown."""
_PREFIX = OptionParamType(prefix)
_END_HELP = "data directory of a `later up`, or URL of a store. A password is safer in the environment."


@click.command(
    epilog=examples(
        "later move --from ./later-data --to redis://10.0.0.1:6379/0 --to-shards 16",
        "LATER_MOVE_TO=redis://later-operator:$PASSWORD@10.0.0.1:6379/0 later move --from ./later-data",
        "later move --from ./later-data --abandon",
    )
)
@click.option("--from", "source", metavar="URL", required=True, envvar=MOVE_FROM,
              help=f"Where the data is: {_END_HELP}  [required; {MOVE_FROM}]")  # fmt: skip
@click.option("--to", "target", metavar="URL", envvar=MOVE_TO,
              help=f"Where it goes: {_END_HELP}  [required; {MOVE_TO}]")  # fmt: skip
@click.option("--to-shards", type=click.IntRange(1, 16_384), metavar="NUMBER",
              help="Shards of a new store.  [default: those of the source; in a cluster 256]")  # fmt: skip
@click.option("--from-prefix", type=_PREFIX, default=DEFAULT_PREFIX, show_default=True,
              help="Prefix of every key of the source.")  # fmt: skip
@click.option("--to-prefix", type=_PREFIX, help="Prefix of every key of the target.  [default: that of the source]")
@click.option("--abandon", "is_abandoned", is_flag=True,
              help="Give up a move that is not over: let the source be used again.")  # fmt: skip
@json_option
@config_options(MOVE)
def move(
    *, source: str, target: str | None, to_shards: int | None, from_prefix: str, to_prefix: str | None,
    is_abandoned: bool, as_json: bool, **flags: str | None,
) -> int:  # fmt: skip
    """Move all data to another store.

    Either end may be an embedded store, or Redis or Valkey, with any number of shards and any prefix. Stop every daemon
    first: an instance with a heartbeat in the last ten seconds, at either end, is refused. The target
    must hold no tasks. Tasks in flight become due at once. If the command is interrupted, the same one goes on. At the
    end the numbers of tasks must agree; from then on every daemon and command refuses the source. Exit status 1 if the
    move is not over, and why.
    """
    config = load_config(MOVE, flags)
    timeout_s = config.store_timeout_ms / 1000
    if is_abandoned:
        return asyncio.run(_abandon(source, from_prefix, timeout_s))
    if target is None:
        raise ConfigError("--to: expected where the data goes, got nothing")
    return asyncio.run(_move(source, target, to_shards, from_prefix, to_prefix or from_prefix, timeout_s, as_json))


async def _abandon(source: str, prefix: str, timeout_s: float) -> int:
    async with _open_source(source, prefix, timeout_s) as store:
        await abandon(store)
    print("the source may be used again; empty the target before it is used, or choose another --to-prefix")
    return 0


async def _move(
    source: str, target: str, to_shards: int | None, from_prefix: str, to_prefix: str, timeout_s: float, as_json: bool
) -> int:  # fmt: skip
    started = time.monotonic()
    async with AsyncExitStack() as stack:
        from_store = await stack.enter_async_context(_open_source(source, from_prefix, timeout_s))
        await check_source(from_store)
        is_cluster = target.startswith(CLUSTER_SCHEMES)
        shards = CLUSTER_SHARDS if is_cluster else len(from_store.keys.shards)
        to_store = await stack.enter_async_context(_open_target(target, to_prefix, timeout_s, to_shards, shards))
        place = _place(target, to_prefix)
        with task_bar(None) as bar:
            try:
                report = await Move(from_store, to_store, place).run(_teller(bar))
            except StoreDown as error:
                raise StoreDown(f"{error}; the move is not over: run the same command again, which goes on") from error
        _print_report(report, place, len(to_store.keys.shards), time.monotonic() - started, as_json)
    if not as_json:
        _tell_of_signing_key(source, target)
    return 0


def _tell_of_signing_key(source: str, target: str) -> None:
    """Say that the key which signs deliveries is a file of the source's directory, and must be used from now on."""
    file = signing_key_file(Path(source))
    if "://" in source or not file.exists():
        return
    if "://" in target or not Path(target).is_dir():
        notify(f"deliveries are signed by the key in {file}: start daemons with --signing-key and a copy of it")
    elif not signing_key_file(Path(target)).exists():
        notify(f"deliveries are signed by the key in {file}: copy it to {target} before `later up` makes another one")


def _print_report(report: MoveReport, place: str, shards: int, seconds: float, as_json: bool) -> None:
    if as_json:
        fields = {
            "state": report.state.value, "to": place, "shards": shards, "tasks": report.tasks,
            "tasks_put": report.put, "others_put": report.others, "seconds": round(seconds, 3),
        }  # fmt: skip
        print(json.dumps(fields))
        return
    if report.state is MoveState.WAS_DONE:
        print(f"the data is in {place} already; nothing was left to do")
        return
    earlier = f" ({report.tasks - report.put:,} of them by an earlier run)" if report.put < report.tasks else ""
    print(f"{report.tasks:,} tasks moved{earlier}, and {report.others:,} other records, in {seconds:.1f} s")
    print(f"they are in {place}, in {shards} shards; daemons and commands refuse the source from now on")


def _teller(bar: ProgressBar) -> Callable[[int, int], None]:
    """Return what shows the progress: in the bar, and in lines where there is none."""
    started = told = time.monotonic()
    first: int | None = None

    def tell(done: int, total: int) -> None:
        nonlocal told, first
        bar.update(done, total)
        now = time.monotonic()
        first = done if first is None else first
        if bar.is_shown or now - told < TELL_EVERY_S:
            return
        told = now
        rate = (done - first) / (now - started)
        left = f", {(total - done) / rate:.0f} s left" if rate > 0 else ""
        notify(f"{done:,} of {total:,} tasks, {rate:,.0f}/s{left}")

    return tell


# The two ends


@asynccontextmanager
async def _open_source(text: str, prefix: str, timeout_s: float) -> AsyncIterator[Store]:
    """Open the store that is moved; run it meanwhile if it is an embedded one."""
    if "://" not in text and not _is_socket(text) and not holds_store(Path(text)):
        raise EmbeddedError(f"--from {text}: there is no store; expected the directory of a `later up`, or a URL")
    async with _running(text) as url:
        settings = StoreSettings(url=url, prefix=prefix, timeout_s=timeout_s)
        with _names_end(f"--from {mask_url(text)}"):
            opened = await _open(settings)
        async with aclosing(opened) as store:
            if not store.keys.shards:
                raise ConfigError(f"--from {mask_url(text)}: there is no data of later with the prefix {prefix}")
            yield store


@asynccontextmanager
async def _open_target(
    text: str, prefix: str, timeout_s: float, wanted: int | None, default: int
) -> AsyncIterator[Store]:
    """Open the store that gets the data; lay it out if it is new."""
    _check_target(text)
    async with _running(text) as url:
        settings = StoreSettings(url=url, prefix=prefix, timeout_s=timeout_s)
        with _names_end(f"--to {mask_url(text)}"):
            store = await _open(settings)
            if not store.keys.shards:
                await store.aclose()
                new = connect_store(settings, wanted or default, _clock(), DEFAULT_POLICY, "", lambda verb: _ignore)
                async with aclosing(new):
                    await new.client.open()
                store = await _open(settings)
        async with aclosing(store):
            shards = len(store.keys.shards)
            if wanted not in (None, shards):
                raise ConfigError(
                    f"--to-shards {wanted}: the target is laid out with {shards}: empty it, or leave this out"
                )
            yield store


def _check_target(text: str) -> None:
    """Refuse an address without its scheme, which would be the name of a new directory. Raises ConfigError."""
    if "://" not in text and ":" in text and not Path(text).exists():
        raise ConfigError(f"--to {mask_url(text)}: there is no such directory; expected redis://HOST:PORT for a server")


@contextmanager
def _names_end(end: str) -> Iterator[None]:
    """Say of which end an error tells that is not about both."""
    try:
        yield
    except StoreMismatch as error:
        raise StoreMismatch(f"{end}: {error}") from error
    except StoreDown as error:
        raise StoreDown(f"{end}: {error}") from error


async def _open(settings: StoreSettings) -> Store:
    return await open_store(settings, _clock(), DEFAULT_POLICY, 0, KNOWN_NEEDS | {MOVING, MOVED})


@asynccontextmanager
async def _running(text: str) -> AsyncIterator[str]:
    """Run the embedded store of a directory, unless it runs; yield its URL, or the one that `text` is."""
    url = _parse_url(text)
    if url is None and await answers_ping(Path(text)):
        url = socket_url(Path(text))
    if url is not None:
        yield url
        return
    embedded = EmbeddedStore(Path(text))
    await embedded.start()
    try:
        yield embedded.url
    finally:
        await embedded.stop()


def _parse_url(text: str) -> str | None:
    """Return the URL that is meant; None if it is a directory. Raises ConfigError."""
    if _is_socket(text):
        return f"unix://{quote(str(Path(text).absolute()))}"
    if "://" not in text:
        return None
    try:
        return str(store_url(text))
    except ValueError as error:
        raise ConfigError(f"{mask_url(text)}: expected {error}") from None


def _is_socket(text: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(text).stat().st_mode)
    except (OSError, ValueError):
        return False


def _place(text: str, prefix: str) -> str:
    """Return where the data is after the move, for people."""
    where = mask_url(text) if "://" in text else str(Path(text).absolute())
    return where if prefix == DEFAULT_PREFIX else f"{where} (prefix {prefix})"


def _clock() -> Clock:
    return Clock(time.monotonic, time.time)


def _ignore(seconds: float) -> None:
    """Measure nothing."""

"""Options that the commands of `bulk` share: the input and output, Spark, and the address of the API or the store."""
# ruff: noqa: PLC0415  # help must work without Spark

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from later.bulk.input.task_ids import check_job
from later.bulk.spark.path_syntax import check_output_path
from later.cli.bulk.summary import current_summary
from later.cli.options import CLIENT_COMMAND, STORE_COMMAND, Command, config_options, load_key
from later.config import load
from later.core.errors import Refused

if TYPE_CHECKING:
    from later.bulk.input.spark_input import JobInput
    from later.bulk.transport.target import Target

DEFAULT_MASTER = "local[*,4]"
"""All cores of this machine, and up to four attempts of a Spark task: by default its first failure ends the job."""
INPUT_FORMATS = ("parquet", "csv", "json", "ndjson", "orc", "table")
FORMAT_BY_EXTENSION = {
    ".parquet": "parquet", ".csv": "csv", ".json": "json", ".ndjson": "ndjson", ".jsonl": "ndjson", ".orc": "orc",
}  # fmt: skip


class JobOptions(NamedTuple):
    """A job's input and id, the rows per request (`batch`), and the repetitions of a failed request (`retries`)."""

    input: JobInput
    id: str
    batch: int
    retries: int

    def build_target(self, address: LaterAddress) -> Target:
        from later.bulk.transport.target import Target

        return Target(
            url=address.url,
            prefix=address.prefix,
            timeout_s=address.timeout_s,
            batch_size=self.batch,
            retries=self.retries,
            key_file=address.key_file,
            ca=address.ca,
        )


class SparkOptions(NamedTuple):
    """Spark's master and settings."""

    master: str
    conf: dict[str, str]


class LaterAddress(NamedTuple):
    """The address of the API (http, https) or of the store.

    `prefix` is that of the store's keys, `timeout_s` how long an answer may take, in seconds. `secrets` are the
    passwords in the store's URL of the configuration, by the environment's variables for them. `key_file` names the
    file of the API's key, if it is in one, `ca` that of authorities to trust besides the machine's.
    """

    url: str
    prefix: str
    timeout_s: float
    secrets: Mapping[str, str] = MappingProxyType({})
    key_file: str | None = None
    ca: str | None = None


# Input and output


def job_options(command: Command) -> Command:
    """Give a command the options that describe its input and how it is sent, as its parameter `job` (`JobOptions`)."""

    @wraps(command)
    def with_job(
        *, path: str, format: str | None, column: dict[str, str], constants: dict[str, str], option: dict[str, str],
        ignore_others: bool, allow_empty: bool, job: str, batch: int, retries: int, spread: float = 0, now: bool = True,
        null_time: str = "now", allow_duplicates: bool = False, **others: Any,
    ) -> Any:  # fmt: skip
        from later.bulk.input.column_names import TimeRules
        from later.bulk.input.spark_input import JobInput, check_input

        summary = current_summary()
        summary.job, summary.input = job, path
        if column.keys() & constants.keys():
            raise click.UsageError(f"{min(column.keys() & constants.keys())}: give either --column or --set, not both.")
        job_input = JobInput(
            path=path,
            format=format or infer_format(path),
            options=option,
            columns=column,
            constants=constants,
            spread_s=spread,
            time_rules=TimeRules(all_now=now, null_now=null_time == "now"),
            allow_duplicates=allow_duplicates,
            send_unknown_fields=not ignore_others,
            allow_empty=allow_empty,
        )
        try:
            check_input(job_input)
        except Refused as error:
            raise click.UsageError(f"{error}.") from None
        return command(job=JobOptions(job_input, job, batch, retries), **others)

    decorated: Any = with_job
    for option in reversed(_JOB_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]  # click keeps what it decorates


def parse_job(context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        return check_job(text)
    except Refused as error:
        raise click.BadParameter(f"{text}: {error.detail}") from None


def parse_pairs(context: click.Context, parameter: click.Parameter, pairs: Sequence[str]) -> dict[str, str]:
    """Parse a repeatable option, such as FIELD=VALUE."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair}: expected {parameter.metavar}")
        if name in values:
            raise click.BadParameter(f"{name} is given twice")
        values[name] = value
    return values


def infer_format(path: str) -> str:
    """Return the format by the path's extension, also before that of a compression (`.csv.gz`); otherwise parquet."""
    for suffix in reversed(Path(path).suffixes):
        if suffix.lower() in FORMAT_BY_EXTENSION:
            return FORMAT_BY_EXTENSION[suffix.lower()]
    return "parquet"


_JOB_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("path", metavar="INPUT"),
    click.option(
        "--job", required=True, callback=parse_job, metavar="TEXT",
        help="Id of the job; the ids of its tasks begin with it. Give the same id whenever you mean the same rows.",
    ),
    click.option(
        "--format", type=click.Choice(INPUT_FORMATS),
        help="Format of the input.  [default: by its extension, otherwise parquet]",
    ),
    click.option(
        "--column", callback=parse_pairs, metavar="FIELD=COLUMN", multiple=True,
        help="Map a column of another name to a task's field, or to `key`; repeatable.",
    ),
    click.option(
        "--set", "constants", callback=parse_pairs, metavar="FIELD=VALUE", multiple=True,
        help="Set a field to the same value for all rows; repeatable.",
    ),
    click.option(
        "--option", callback=parse_pairs, metavar="NAME=VALUE", multiple=True,
        help="Option of Spark's reader of the format, like sep=';'; repeatable.",
    ),
    click.option("--ignore-others", is_flag=True, help="Ignore fields of JSON objects that are not a task's fields."),
    click.option("--allow-empty", is_flag=True, help="Take an input directory without files for one of 0 rows."),
    click.option(
        "--batch", type=click.IntRange(1, 10_000), metavar="NUMBER", default=1000, show_default=True,
        help="Rows per request.",
    ),
    click.option(
        "--retries", type=click.IntRange(0, 100), metavar="NUMBER", default=8, show_default=True,
        help="How often a failed request is repeated before Spark retries the whole partition.",
    ),
)  # fmt: skip


def parse_output_directory(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """Check the name of a directory to write a table to, before Spark starts and anything is created."""
    if name is None:
        return None
    try:
        return check_output_path(name)
    except Refused as error:
        raise click.BadParameter(f"{name}: {error.detail}" if name else error.detail) from None


def overwrite_option(table: str) -> Callable[[Command], Command]:
    """Return the decorator that gives a command --overwrite, for the table at another option."""
    return click.option("--overwrite", is_flag=True, help=f"Replace an existing table at --{table}.")


# Spark


def spark_options(command: Command) -> Command:
    """Give a command --master and --conf, as its parameter `spark` (`SparkOptions`), and check that Spark is there."""

    @wraps(command)
    def with_spark(*, master: str, conf: dict[str, str], **others: Any) -> Any:
        return command(spark=SparkOptions(master, conf), **others)

    decorated = click.option(
        "--conf", callback=parse_conf, metavar="KEY=VALUE", multiple=True,
        help="Setting of Spark, such as spark.driver.memory=4g; repeatable.",
    )(with_spark)  # fmt: skip
    return click.option(  # type: ignore[return-value]  # other keywords, the same result
        "--master", default=DEFAULT_MASTER, show_default=True, metavar="URL",
        help="Spark's master: local[…] for this machine; spark://…, yarn or k8s://… for a cluster.",
    )(decorated)  # fmt: skip


def parse_conf(context: click.Context, parameter: click.Parameter, pairs: Sequence[str]) -> dict[str, str]:
    """Parse repeated spark.KEY=VALUE options; the last value of a key counts, as with spark-submit.

    Also checks Spark's packages, because a parameter's callback runs before any code that imports them.
    """
    from later.bulk.spark.preflight import check_packages

    conf: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"{key}: expected spark.KEY=VALUE, like spark.driver.memory=4g")
        conf[key] = value
    check_packages()
    return conf


# The address


def address_options(command: Command) -> Command:
    """Give a command the options of the API's or the store's address, as its parameter `address` (`LaterAddress`)."""

    @wraps(command)
    def with_address(*, url: str | None, **others: Any) -> Any:
        flags = {name: others.pop(name) for name in ("config", "key_file", "ca", "wait", "prefix", "store_timeout")}
        return command(address=load_address(url, flags), **others)

    decorated = config_options(CLIENT_COMMAND, ("key-file", "ca", "wait", "prefix", "store-timeout"))(with_address)
    return click.option(  # type: ignore[return-value]  # other keywords, the same result
        "--url", metavar="URL",
        help="URL of later's API, or of the store: redis://, redis+sentinel://, redis+cluster:// or unix://. Put the "
        "store's password into LATER_REDIS_PASSWORD, or into the file that LATER_REDIS_PASSWORD_FILE names."
        "  [default: http://127.0.0.1:8080; LATER_URL, for the API only]",
    )(decorated)  # fmt: skip


def store_options(command: Command) -> Command:
    """Give a command the options of the store's address, as its parameter `address` (`LaterAddress`)."""

    @wraps(command)
    def with_address(*, url: str | None, **others: Any) -> Any:
        flags = {name: others.pop(name) for name in ("config", "redis", "data", "prefix", "store_timeout")}
        return command(address=load_store_address(url, flags), **others)

    decorated = config_options(STORE_COMMAND, ("redis", "data", "prefix", "store-timeout"))(with_address)
    return click.option(  # type: ignore[return-value]  # other keywords, the same result
        "--url", metavar="URL",
        help="The same as --redis. Put a password into LATER_REDIS_PASSWORD, or into the file that "
        "LATER_REDIS_PASSWORD_FILE names.",
    )(decorated)  # fmt: skip


def load_address(url: str | None, flags: dict[str, str | None]) -> LaterAddress:
    """Load the address from --url, the environment and the file. Raises ConfigError."""
    from later.store.url import check_url, is_store_url

    if url is not None and is_store_url(check_url(url)):
        config = load(STORE_COMMAND, flags | {"redis": url}, os.environ)
        return LaterAddress(url, config.prefix, config.store_timeout_ms / 1000)
    config = load(CLIENT_COMMAND, flags | {"url": url}, os.environ)
    key_file = load_key(flags, config).file
    return LaterAddress(config.url, config.prefix, config.wait_ms / 1000, key_file=key_file, ca=config.ca)


def load_store_address(url: str | None, flags: dict[str, str | None]) -> LaterAddress:
    """Load the store's address. The URL in the environment or in the file may contain a password, an option may not.

    Raises ConfigError.
    """
    from later.embedded import socket_url
    from later.store.url import check_store_url, split_secrets

    if url is not None:
        if flags["redis"] is not None or flags["data"] is not None:
            raise click.UsageError("Give only one of --url, --redis and --data.")
        flags = flags | {"redis": check_store_url(url)}
    config = load(STORE_COMMAND, flags, os.environ)
    store_url = socket_url(config.data) if config.data_given else config.store_url
    secrets: Mapping[str, str] = {}
    if flags["redis"] is None:
        store_url, secrets = split_secrets(store_url)
    return LaterAddress(check_store_url(store_url), config.prefix, config.store_timeout_ms / 1000, secrets)


@contextmanager
def secrets_in_environment(address: LaterAddress) -> Iterator[None]:
    """Put the address's passwords into the environment, where Spark's processes look, unless others are there."""
    from later.store.url import PASSWORD, password_from_environ

    is_given = password_from_environ(os.environ) is not None
    added = {
        name: value
        for name, value in address.secrets.items()
        if value and not (is_given if name == PASSWORD else os.environ.get(name))
    }
    previous = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

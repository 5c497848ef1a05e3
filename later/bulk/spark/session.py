"""The Spark session that a command's job runs in: quiet, seen by this machine alone if it is local, gone at the end."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from subprocess import TimeoutExpired
from tempfile import TemporaryFile
from typing import IO
from warnings import catch_warnings

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from later.bulk.spark.errors import JAVA_GONE, error_reason, spark_error, translate_errors
from later.bulk.spark.preflight import check_java
from later.bulk.spark.signals import defer_signals, ignore_signals, restore_sigint
from later.core.errors import LaterError

QUIET = {"spark.log.level": "OFF", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
JAVA_EXIT_TIMEOUT_S = 30
"""How long Spark's Java may take to leave."""
STDERR = 2

_CONTEXT_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Where pyspark logs each error that it raises, with Java's whole stack."""

_IDLE = re.compile(r"WARNING: |\d\d/\d\d/\d\d [\d:]+ |Using Spark's|Setting |To adjust|\s+at |\s+\.\.\. ")
"""Lines of Java that do not say why it ended."""


@contextmanager
def open_session(master: str, conf: Mapping[str, str], name: str) -> Iterator[SparkSession]:
    """A session on a master, with these settings before ours; stopped at the end, also by Ctrl-C; a second one
    does not break that off.

    A session that is active here already (a notebook's, a test's) is used as it is, and left open. Spark says nothing
    of its own, unless the settings have a spark.log.level.

    Raises:
        SparkMissing: there is no Java for it.
        LaterError: it did not start; the text says why.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    check_java(os.environ)
    with ExitStack() as until_the_end:
        said = STDERR if "spark.log.level" in conf else until_the_end.enter_context(_quiet())
        yield until_the_end.enter_context(_started(build_settings(master, conf, name), said))


def build_settings(master: str, conf: Mapping[str, str], name: str) -> dict[str, str]:
    """Ours, under what whoever runs the command set."""
    ours = QUIET | (LOOPBACK if is_local(master) else {}) | {"spark.app.name": name}
    return ours | dict(conf) | {"spark.master": master}


def is_local(master: str) -> bool:
    """Do its workers run on this machine?"""
    return master.startswith("local")


@contextmanager
def _quiet() -> Iterator[IO[bytes]]:
    """Keep off standard error what pyspark and py4j log; and a file for what Java and the workers write there."""
    contexts = [PySparkLogger.getLogger(name) for name in _CONTEXT_LOGGERS]
    for logger in contexts:
        logger.disabled = True
    logging.root.addFilter(_is_not_of_py4j)
    py4j = logging.getLogger("py4j")
    level = py4j.level
    py4j.setLevel(logging.CRITICAL)
    try:
        with TemporaryFile() as said:
            yield said
    finally:
        py4j.setLevel(level)
        logging.root.removeFilter(_is_not_of_py4j)
        for logger in contexts:
            logger.disabled = False


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """It logs each interrupted or broken call to the root logger, with a traceback."""
    return f"{os.sep}py4j{os.sep}" not in record.pathname


@contextmanager
def _started(settings: Mapping[str, str], said: IO[bytes] | int) -> Iterator[SparkSession]:
    conf = SparkConf().setAll(list(settings.items()))
    until_the_end = ExitStack()
    try:
        until_the_end.enter_context(restore_sigint())
        with _this_python(settings["spark.master"]), translate_errors():
            gateway = until_the_end.enter_context(_java(conf, said))
            with _starting(settings["spark.master"]):
                context = SparkContext(conf=conf, gateway=gateway)
                until_the_end.callback(_stop, context)
                if not isinstance(said, int):
                    _hush(context)
                session = SparkSession.builder.getOrCreate()
        yield session
    finally:
        with ignore_signals():
            until_the_end.close()


@contextmanager
def _starting(master: str) -> Iterator[None]:
    """Say which master it was that failed. Where none answers, Spark says no more than that it has stopped."""
    try:
        yield
    except Py4JJavaError as error:
        why = error_reason(error)
        if why == JAVA_GONE and not is_local(master):
            why = "it does not answer, or does not take the job"
        raise LaterError(f"Spark did not start on {master}: {why}") from error


def _hush(context: SparkContext) -> None:
    """Let the server that Java tells of accumulators say nothing of a Java that goes in the middle of a word."""
    context._accumulatorServer.handle_error = _unheard  # type: ignore[assignment]  # Spark makes the server


def _unheard(request: object, client: object) -> None:
    """Nobody is told: who asked Java for something hears of it."""


def _stop(context: SparkContext) -> None:
    """Whatever state it is in: what goes wrong here would hide why it ends."""
    with suppress(LaterError), translate_errors(), catch_warnings(action="ignore"):
        context.stop()


@contextmanager
def _this_python(master: str) -> Iterator[None]:
    """Let Spark's workers on this machine run this Python: `python3` on PATH may be another, without later.

    Those of a cluster run what PYSPARK_PYTHON says; the planner of data sources runs beside this process anyway.
    And there is always a master, so a server of Connect's that the environment names is not for us.
    """
    chosen: dict[str, str | None] = {"PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_REMOTE": None}
    if is_local(master):
        chosen["PYSPARK_PYTHON"] = sys.executable
    before = {name: os.environ.get(name) for name in chosen}
    _put_into_environment(chosen)
    try:
        yield
    finally:
        _put_into_environment(before)


def _put_into_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _java(conf: SparkConf, said: IO[bytes] | int) -> Iterator[JavaGateway | None]:
    """Spark's Java, writing to `said`; None where an earlier session left one here, which Spark takes again."""
    if SparkContext._gateway is not None:
        yield None
        return
    gateway = None
    try:
        with defer_signals():  # or a Java would stay that nobody knows
            gateway = _launched(conf, said)
        yield gateway
    finally:
        if gateway is not None:
            _end(gateway)


def _launched(conf: SparkConf, said: IO[bytes] | int) -> JavaGateway:
    try:
        return launch_gateway(conf, {"stdout": said, "stderr": said})  # type: ignore[no-untyped-call]  # it has no types
    except PySparkException as error:
        raise LaterError(f"Spark did not start: {_words(said)}") from error


def _words(said: IO[bytes] | int) -> str:
    """What Java said last of why it ended."""
    if isinstance(said, int):
        return "the reason is above"
    said.seek(0)
    lines = said.read().decode("utf-8", "replace").splitlines()
    told = [line.strip() for line in lines if line.strip() and not _IDLE.match(line)]
    return spark_error("; ".join(told)) or "Java ended without a word"


def _end(gateway: JavaGateway) -> None:
    """Spark's Java leaves when its standard input ends; nobody else in this process may take it again."""
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(JAVA_EXIT_TIMEOUT_S)
    except TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()

"""The Spark session of a command: it prints nothing, a local one listens on loopback only, and it stops at the end."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from subprocess import TimeoutExpired
from tempfile import TemporaryFile
from typing import IO, Any
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
from later.core.errors import LaterError
from later.signals import defer_signals, ignore_signals, restore_sigint

QUIET = {"spark.log.level": "OFF", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
SMALL_FILES = {"spark.sql.files.openCostInBytes": str(64 * 1024)}
"""The bytes for which opening a file counts. With Spark's default of 4 MiB, 2,000 small files are 63 partitions, each
with a connection and a start of its own."""
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
JAVA_EXIT_TIMEOUT_S = 30
"""How long Spark's Java may take to exit before it is killed."""
STDERR = 2

_CONTEXT_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers to which pyspark logs each error that it raises, with Java's stack."""

_NO_REASON = re.compile(r"WARNING: |\d\d/\d\d/\d\d [\d:]+ |Using Spark's|Setting |To adjust|\s+at |\s+\.\.\. ")
"""Lines of Java that do not say why it exited."""

JavaOutput = IO[bytes] | int
"""A file for what Java and the workers write, or the number of a file descriptor."""


@contextmanager
def open_session(master: str, conf: Mapping[str, str], name: str) -> Iterator[SparkSession]:
    """Open a session on a master, and stop it at the end; `conf` overrides our settings.

    Ctrl-C stops it, too, and a second Ctrl-C does not interrupt that. An active session (a notebook's, a test's) is
    used as it is, and left open. Spark prints nothing, unless the settings have a spark.log.level.

    Raises:
        SparkMissing: There is no suitable Java.
        LaterError: The session did not start; the text says why.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    check_java(os.environ)
    with ExitStack() as stack:
        output = STDERR if "spark.log.level" in conf else stack.enter_context(_captured_output())
        yield stack.enter_context(_new_session(build_settings(master, conf, name), output))


def build_settings(master: str, conf: Mapping[str, str], name: str) -> dict[str, str]:
    """Return our settings, overridden by the operator's."""
    settings = QUIET | SMALL_FILES | (LOOPBACK if is_local(master) else {}) | {"spark.app.name": name}
    return settings | dict(conf) | {"spark.master": master}


def is_local(master: str) -> bool:
    """Return True if the master's workers run on this machine."""
    return master.startswith("local")


@contextmanager
def _captured_output() -> Iterator[IO[bytes]]:
    """Silence the loggers of pyspark and py4j; yield a file for what Java and the workers would write to stderr."""
    context_loggers = [PySparkLogger.getLogger(name) for name in _CONTEXT_LOGGERS]
    for logger in context_loggers:
        logger.disabled = True
    logging.root.addFilter(_is_not_of_py4j)
    py4j_logger = logging.getLogger("py4j")
    level = py4j_logger.level
    py4j_logger.setLevel(logging.CRITICAL)
    try:
        with TemporaryFile() as output:
            yield output
    finally:
        py4j_logger.setLevel(level)
        logging.root.removeFilter(_is_not_of_py4j)
        for logger in context_loggers:
            logger.disabled = False


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for py4j's records: it logs each interrupted call to the root logger, with a traceback."""
    return f"{os.sep}py4j{os.sep}" not in record.pathname


@contextmanager
def _new_session(settings: Mapping[str, str], output: JavaOutput) -> Iterator[SparkSession]:
    conf, master = SparkConf().setAll(list(settings.items())), settings["spark.master"]
    stack = ExitStack()
    try:
        stack.enter_context(restore_sigint())
        with _python_environment(master), translate_errors():
            gateway = stack.enter_context(_java_gateway(conf, output))
            with name_master_in_errors(master):
                context = SparkContext(conf=conf, gateway=gateway)
                stack.callback(_stop_context, context)
                if not isinstance(output, int):  # the caller of Java gets the error anyway, if Java exits during a call
                    server: Any = context._accumulatorServer
                    server.handle_error = lambda request, client: None
                session = SparkSession.builder.getOrCreate()
        yield session
    finally:
        with ignore_signals():
            stack.close()


@contextmanager
def name_master_in_errors(master: str) -> Iterator[None]:
    """Name the master in Spark's errors: if it does not answer, Spark only says that the context has been stopped."""
    try:
        yield
    except Py4JJavaError as error:
        reason = error_reason(error)
        if reason == JAVA_GONE and not is_local(master):
            reason = "it does not answer, or does not accept the job"
        raise LaterError(f"Spark did not start on {master}: {reason}") from error


def _stop_context(context: SparkContext) -> None:
    """Stop the context whatever its state; an error here would hide why the session ends."""
    with suppress(LaterError), translate_errors(), catch_warnings(action="ignore"):
        context.stop()


@contextmanager
def _python_environment(master: str) -> Iterator[None]:
    """Let workers on this machine run this Python: `python3` on PATH may be another one, without later.

    Workers of a cluster run PYSPARK_PYTHON; the planner of data sources runs beside this process in any case. A Spark
    Connect server that the environment names is ignored, because a command always has a master.
    """
    variables: dict[str, str | None] = {"PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_REMOTE": None}
    if is_local(master):
        variables["PYSPARK_PYTHON"] = sys.executable
    previous = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(previous)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _java_gateway(conf: SparkConf, output: JavaOutput) -> Iterator[JavaGateway | None]:
    """Start Spark's Java, which writes to `output`, and stop it at the end.

    Yields None if an earlier session left a Java in this process, which Spark uses again.
    """
    if SparkContext._gateway is not None:
        yield None
        return
    gateway = None
    try:
        with defer_signals():  # an interrupt here would leave a Java behind
            try:
                gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]  # untyped
            except PySparkException as error:
                raise LaterError(f"Spark did not start: {_java_error(output)}") from error
        yield gateway
    finally:
        if gateway is not None:
            SparkContext._gateway = SparkContext._jvm = None  # no other session may use this Java
            gateway.shutdown()
            gateway.proc.stdin.close()  # Java exits when its standard input ends
            try:
                gateway.proc.wait(JAVA_EXIT_TIMEOUT_S)
            except TimeoutExpired:
                gateway.proc.kill()
                gateway.proc.wait()


def _java_error(output: JavaOutput) -> str:
    """Return the last lines of Java's output that say why it exited."""
    if isinstance(output, int):
        return "the reason is above"
    output.seek(0)
    lines = output.read().decode("utf-8", "replace").splitlines()
    reasons = [line.strip() for line in lines if line.strip() and not _NO_REASON.match(line)]
    return spark_error("; ".join(reasons)) or "Java exited without an error message"

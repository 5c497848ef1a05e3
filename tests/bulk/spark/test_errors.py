"""Spark's errors in one line. The texts are those of Spark 4.3."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException, PythonException, SparkRuntimeException

from later.bulk.spark.errors import JAVA_GONE, file_error, spark_error, translate_errors, worker_error
from later.core.errors import LaterError
from tests.cases import each_case

LATERS_ERROR = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/srv/later/bulk/sending.py", line 22, in send
    raise StoreDown("the store cannot be reached: refused")
later.core.errors.StoreDown: the store cannot be reached: refused
"""
FAILED_STAGE = """An error occurred while calling o201.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 3.0 (TID 27) (localhost executor driver): java.io.IOException: \
Mkdirs failed to create file:/proc/nope (exists=false, cwd=file:/)
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)
"""


def test_an_error_of_later_in_a_worker_keeps_its_text() -> None:
    assert worker_error(LATERS_ERROR) == "the store cannot be reached: refused"


def test_another_error_in_a_worker_has_its_line() -> None:
    text = 'Traceback (most recent call last):\n  File "/srv/job.py", line 26, in rows\n    a["x"]\nKeyError: \'x\'\n'

    assert worker_error(text) == "a worker failed: KeyError: 'x' (/srv/job.py, line 26)"


def test_the_last_of_a_chain_of_errors_counts_without_javas_stack() -> None:
    text = (
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in a\nKeyError: 'x'\n\n"
        f"During handling of the above exception, another exception occurred:\n\n{LATERS_ERROR}\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:586)\n\nDriver stacktrace:\n"
    )

    assert worker_error(text) == "the store cannot be reached: refused"


def test_an_unreadable_file_is_named_with_the_reason() -> None:
    texts = [
        "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///b.csv."
        "  SQLSTATE: KD001",
        "org.apache.spark.SparkIllegalArgumentException: CSV header does not conform to the schema.\n Header: topic",
    ]
    reason = "Encountered error while reading file file:///b.csv."
    assert file_error(texts) == f"{reason} CSV header does not conform to the schema. Header: topic"
    assert file_error(texts[:1]) == reason


def test_an_unwritable_table_is_named_with_the_reason() -> None:
    texts = [
        "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to "
        "file:/full/to/_temporary/0/_temporary/attempt_2026_0000_m_000001_2/part-01-8a.c000.parquet. SQLSTATE: 58030",
        "org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device",
        "java.io.IOException: No space left on device",
    ]
    assert file_error(texts) == "Task failed while writing rows to file:/full/to. No space left on device"


def test_an_error_without_text_is_named() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in a\n    fail()\nMemoryError\n'

    assert worker_error(text) == "a worker failed: MemoryError (a.py, line 1)"


@each_case(
    ("text", "reason"),
    [
        ("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03", "Path does not exist: file:/x."),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did you mean one of the "
            "following? [`id`]. SQLSTATE: 42703;\n'Project ['nope]\n+- Range (0, 1, step=1, splits=Some(2))\n",
            "A column with name `nope` cannot be resolved. Did you mean one of the following? [`id`].",
        ),
        (
            "org.apache.spark.SparkException: [FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Could not read footer.\n"
            "If not, please convert it. SQLSTATE: KD001",
            "Could not read footer. If not, please convert it.",
        ),
        (
            "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.S3A not found",
            "Class org.apache.S3A not found",
        ),
        (
            "(org.apache.spark.SparkClassNotFoundException) [DATA_SOURCE_NOT_FOUND] No nosuch. SQLSTATE: 42K02",
            "No nosuch.",
        ),
        (FAILED_STAGE.partition(": ")[2], "Mkdirs failed to create file:/proc/nope (exists=false, cwd=file:/)"),
        ("\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nselec",
         "Syntax error at or near 'selec'."),
        ("Wrong.\n\nJVM stacktrace:\njava.lang.Error: Wrong.\n\tat a.B(C.scala:1)\nCaused by: a.b: Else", "Wrong."),
        (
            "Error while instantiating 'org.apache.Builder':\n\nJVM stacktrace:\n"
            "java.lang.IllegalArgumentException: Error while instantiating 'org.apache.Builder':\n\tat a.B(C.scala:1)\n"
            "Caused by: java.lang.Exception: between\n\t... 1 more\n"
            "Caused by: org.apache.SparkException: [INVALID.TIME_ZONE] The value 'Mars' is invalid. SQLSTATE: 22022\n"
            "\tat a.B(C.scala:2)\n",
            "The value 'Mars' is invalid.",
        ),
        ("plain text", "plain text"),
    ],
)  # fmt: skip
def test_spark_errors_have_no_codes_classes_plans_and_stacks(text: str, reason: str) -> None:
    assert spark_error(text) == reason


def test_a_long_reason_is_cut() -> None:
    assert len(spark_error("x" * 100_000)) < 1000


@each_case(
    ("raised", "reason"),
    [
        (
            AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03"),
            "Path does not exist: file:/x.",
        ),
        (PythonException(LATERS_ERROR), "the store cannot be reached: refused"),
        (Py4JNetworkError("Answer from Java side is empty"), JAVA_GONE),
        (ConnectionRefusedError(111, "Connection refused"), JAVA_GONE),
        (SparkRuntimeException("Job 1 cancelled because SparkContext was shut down"), JAVA_GONE),
        (SparkRuntimeException("Cannot call methods on a stopped SparkContext.\nThis was made at:"), JAVA_GONE),
        (SparkRuntimeException('because the return value of "org.apache.spark.SparkContext.ui()" is null'), JAVA_GONE),
    ],
)  # fmt: skip
def test_errors_of_spark_become_errors_of_later(raised: Exception, reason: str) -> None:
    with pytest.raises(LaterError) as error, translate_errors():
        raise raised

    assert str(error.value) == reason


def test_errors_of_later_pass_unchanged() -> None:
    error = LaterError("of later")

    with pytest.raises(LaterError) as raised, translate_errors():
        raise error

    assert raised.value is error

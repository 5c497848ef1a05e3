"""What goes wrong in Spark is told in one line. The texts are what Spark 4.3 says."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import AnalysisException, PythonException, SparkRuntimeException

from later.bulk.spark.errors import JAVA_GONE, file_error, spark_error, translate_errors, worker_error
from later.core.errors import LaterError

OURS = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/srv/later/bulk/sending.py", line 22, in send
    raise StoreDown("the store cannot be reached: refused")
later.core.errors.StoreDown: the store cannot be reached: refused
"""
STAGE = """An error occurred while calling o201.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 3.0 (TID 27) (localhost executor driver): java.io.IOException: \
Mkdirs failed to create file:/proc/nope (exists=false, cwd=file:/)
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)
"""


def test_what_a_worker_raised_of_ours_comes_in_its_words() -> None:
    assert worker_error(OURS) == "the store cannot be reached: refused"


def test_what_else_a_worker_raised_says_where() -> None:
    text = 'Traceback (most recent call last):\n  File "/srv/job.py", line 26, in rows\n    a["x"]\nKeyError: \'x\'\n'

    assert worker_error(text) == "a worker failed: KeyError: 'x' (/srv/job.py, line 26)"


def test_of_a_chain_of_errors_the_last_is_told_and_no_java_below_it() -> None:
    text = (
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in a\nKeyError: 'x'\n\n"
        f"During handling of the above exception, another exception occurred:\n\n{OURS}\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:586)\n\nDriver stacktrace:\n"
    )

    assert worker_error(text) == "the store cannot be reached: refused"


def test_of_a_file_that_cannot_be_read_the_reason_is_told_too() -> None:
    texts = [
        "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///b.csv."
        "  SQLSTATE: KD001",
        "org.apache.spark.SparkIllegalArgumentException: CSV header does not conform to the schema.\n Header: topic",
    ]
    told = "Encountered error while reading file file:///b.csv."
    assert file_error(texts) == f"{told} CSV header does not conform to the schema. Header: topic"
    assert file_error(texts[:1]) == told


def test_of_a_table_that_cannot_be_written_the_reason_is_told_too() -> None:
    texts = [
        "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to "
        "file:/full/to/_temporary/0/_temporary/attempt_2026_0000_m_000001_2/part-01-8a.c000.parquet. SQLSTATE: 58030",
        "org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device",
        "java.io.IOException: No space left on device",
    ]
    assert file_error(texts) == "Task failed while writing rows to file:/full/to. No space left on device"


def test_an_error_without_words_is_named() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in a\n    fail()\nMemoryError\n'

    assert worker_error(text) == "a worker failed: MemoryError (a.py, line 1)"


@pytest.mark.parametrize(
    ("said", "told"),
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
        (STAGE.partition(": ")[2], "Mkdirs failed to create file:/proc/nope (exists=false, cwd=file:/)"),
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
        ("plain words", "plain words"),
    ],
)  # fmt: skip
def test_what_spark_says_comes_without_codes_classes_plans_and_stacks(said: str, told: str) -> None:
    assert spark_error(said) == told


def test_a_reason_has_an_end() -> None:
    assert len(spark_error("x" * 100_000)) < 1000


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03"),
            "Path does not exist: file:/x.",
        ),
        (PythonException(OURS), "the store cannot be reached: refused"),
        (Py4JNetworkError("Answer from Java side is empty"), JAVA_GONE),
        (ConnectionRefusedError(111, "Connection refused"), JAVA_GONE),
        (SparkRuntimeException("Job 1 cancelled because SparkContext was shut down"), JAVA_GONE),
        (SparkRuntimeException("Cannot call methods on a stopped SparkContext.\nThis was made at:"), JAVA_GONE),
        (SparkRuntimeException('because the return value of "org.apache.spark.SparkContext.ui()" is null'), JAVA_GONE),
    ],
)  # fmt: skip
def test_errors_of_spark_become_ours(raised: Exception, told: str) -> None:
    with pytest.raises(LaterError) as error, translate_errors():
        raise raised

    assert str(error.value) == told


def test_errors_of_ours_pass_as_they_are() -> None:
    error = LaterError("ours")

    with pytest.raises(LaterError) as raised, translate_errors():
        raise error

    assert raised.value is error

"""The command `work`: a consumer that runs a command for each task."""

from __future__ import annotations

import click

from later.cli.options import DURATION, client_options, examples
from later.cli.work_loop import WorkLoop, WorkOptions
from later.client.consumer import Consumer
from later.client.http import ApiClient
from later.signals import TERMINATION_SIGNALS, handled_signals, signal_handlers


@click.command(
    epilog=examples(
        "later work jobs -- ./do-a-job",
        "later work images -n 4 -- sh -c 'convert - out/$LATER_ID.png'",
        about="The command gets the task's content on standard input, and these variables: LATER_ID, LATER_TOPIC, "
        "LATER_ATTEMPT, LATER_FAILURES, LATER_MAX_RETRY, LATER_DUE_AT, LATER_CREATED_AT, LATER_LAST_ERROR, "
        "LATER_HEADERS and LATER_CONTEXT (JSON objects). Exit status 0: the task is done. 75: it is given back, and "
        "no attempt counts. "
        "Anything else: the attempt failed, and the last line on standard error is kept with the task.",
    ),
)
@click.argument("topic")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option(
    "-n", "slots", type=click.IntRange(1, 1000), metavar="NUMBER", default=1, show_default=True,
    help="Commands that run at a time.",
)  # fmt: skip
@click.option(
    "--lease", type=DURATION, default="30s", show_default=True,
    help="How long tasks are claimed for. Leases are extended while commands run.",
)  # fmt: skip
@click.option(
    "--grace", type=DURATION, default="30s", show_default=True,
    help="How long commands may go on after SIGTERM or Ctrl-C. Then their tasks are given back.",
)  # fmt: skip
@click.option("--until-empty", is_flag=True, help="End when nothing is due, instead of waiting.")
@client_options
def work(
    *,
    client: ApiClient,
    topic: str,
    command: tuple[str, ...],
    slots: int,
    lease: float,
    grace: float,
    until_empty: bool,
) -> int:
    """Run a command for each task of a pulled topic.

    Leases are extended as long as commands run. SIGTERM or Ctrl-C ends this command when the commands have ended; a
    second one gives their tasks back at once.
    """
    options = WorkOptions(topic, command, slots, lease, grace, until_empty)
    loop = WorkLoop(options, lambda: Consumer(client.clone()))
    with signal_handlers(dict.fromkeys(handled_signals(TERMINATION_SIGNALS), loop.on_signal)):
        loop.run()
    return 0

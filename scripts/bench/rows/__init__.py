"""The rows of the table, in order; `--only` selects them by name."""

from scripts.bench.results import Row
from scripts.bench.rows.batch import BATCH
from scripts.bench.rows.bulk import BULK, EXPORT
from scripts.bench.rows.consoles import CONSOLES_OPEN
from scripts.bench.rows.create import CREATE
from scripts.bench.rows.deliver import DELIVER, DELIVER_HTTPS, DELIVER_ORIGINS, DELIVER_TOPICS
from scripts.bench.rows.durable_creates import DURABILITY
from scripts.bench.rows.endless import ENDLESS
from scripts.bench.rows.handlers import HANDLERS
from scripts.bench.rows.idle import IDLE
from scripts.bench.rows.isolation import ISOLATION
from scripts.bench.rows.lateness import LATENESS_200, LATENESS_1000, LATENESS_4000
from scripts.bench.rows.memory import MEMORY
from scripts.bench.rows.million import MILLION
from scripts.bench.rows.observation import ACCESS_LOG, TRACES
from scripts.bench.rows.pending import PENDING
from scripts.bench.rows.pull import PULL, PULL_100, PULL_IDLE, PULL_WAIT
from scripts.bench.rows.query import QUERY
from scripts.bench.rows.safety import GUARD, KEYS, SIGNED
from scripts.bench.rows.sweep import SWEEP

ROWS: tuple[Row, ...] = (
    CREATE,
    DURABILITY,
    QUERY,
    BATCH,
    BULK,
    EXPORT,
    DELIVER,
    DELIVER_HTTPS,
    DELIVER_TOPICS,
    DELIVER_ORIGINS,
    LATENESS_200,
    LATENESS_1000,
    LATENESS_4000,
    ISOLATION,
    ENDLESS,
    CONSOLES_OPEN,
    PULL,
    PULL_100,
    PULL_WAIT,
    PULL_IDLE,
    HANDLERS,
    KEYS,
    SIGNED,
    GUARD,
    ACCESS_LOG,
    TRACES,
    MILLION,
    MEMORY,
    PENDING,
    IDLE,
    SWEEP,
)

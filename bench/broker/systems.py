"""The measured systems: streamfleet, the raw limits, and every peer, with sizes and their best settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["ours", "limit", "python", "node"]


@dataclass(frozen=True)
class System:
    """One system under measurement.

    Attributes:
        name: name on the command line and in the report's data.
        title: usual name.
        kind: streamfleet itself, a limit without a queue, or a peer on Python or Node.
        adapter: file in peers/, or a module with dots.
        packages: packages whose versions decide the figures, the peer's own first.
        settings: settings of the worker and of the bulk call, in words, for enqueue and drain.
        defaults: default settings, for round trips; empty if that is not measured.
        tuned: settings that shorten round trips; empty if there is nothing to tune.
        jobs: numbers of jobs to enqueue in bulk and to drain; about two seconds of work.
        enqueues: true if it enqueues in another way than the systems before it.
        environment: name of its virtual environment; empty for streamfleet's own.
        variables: further environment variables.
    """

    name: str
    title: str
    kind: Kind
    adapter: str
    packages: tuple[str, ...]
    settings: str
    defaults: str
    tuned: str
    jobs: tuple[int, int]
    enqueues: bool = True
    environment: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


RAW = System(
    "raw",
    "raw redis-py, pipelines of 100",
    "limit",
    "raw.py",
    ("redis", "hiredis"),
    "100 commands to a pipeline: XADD; then XREADGROUP, and for each job SET with a time to live, XACK, XDEL",
    "",
    "XADD, BLPOP, GET; worker: blocking XREADGROUP, then SET, LPUSH, XACK, XDEL in one pipeline",
    (40_000, 40_000),
)
OURS = System(
    "streamfleet",
    "streamfleet",
    "ours",
    "bench.broker.ours",
    ("redis", "hiredis"),
    "Client.enqueue_many of 5,000; one worker whose engine has 512 slots and answers at once",
    "as it comes: Client.enqueue, Handle.result",
    "",
    (40_000, 40_000),
)
SYSTEMS: tuple[System, ...] = (
    OURS,
    RAW,
    System(
        "raw-grouped",
        "the same, one XACK and XDEL for 100",
        "limit",
        "raw.py",
        ("redis", "hiredis"),
        "as above, but one XACK and one XDEL name all 100 jobs of a pipeline",
        "",
        "",
        (0, 40_000),
        enqueues=False,
        variables={"GROUPED": "1"},
    ),
    System(
        "raw-bytes",
        "raw protocol bytes, no client library",
        "limit",
        "raw_bytes.py",
        (),
        "the commands of raw redis-py as bytes on a socket, 100 jobs at a time, encoded beforehand but for the ids",
        "",
        "the commands of raw redis-py",
        (100_000, 100_000),
    ),
    System(
        "bullmq-node",
        "BullMQ on Node",
        "node",
        "bullmq.mjs",
        ("bullmq", "ioredis"),
        "addBulk of 500; worker with concurrency 100",
        "as it comes: add, waitUntilFinished",
        "",
        (40_000, 40_000),
        environment="bullmq-node",
    ),
    System(
        "bullmq-python",
        "BullMQ for Python",
        "python",
        "on_bullmq.py",
        ("bullmq", "redis", "hiredis", "uvloop"),
        "addBulk of 500; worker with concurrency 10",
        "as it comes: add, the completed event of QueueEvents",
        "",
        (20_000, 4_000),
        environment="bullmq",
    ),
    System(
        "saq",
        "saq",
        "python",
        "on_saq.py",
        ("saq", "redis", "hiredis", "uvloop"),
        "20 enqueues at once; worker with concurrency 50",
        "as it comes: apply, which polls every 0.5 s",
        "apply with poll_interval 0",
        (10_000, 4_000),
        environment="saq",
    ),
    System(
        "huey",
        "huey (greenlets)",
        "python",
        "on_huey.py",
        ("huey", "gevent", "redis", "hiredis"),
        "one enqueue after the other; consumer with 50 greenlets",
        "as it comes, with one greenlet: get(blocking=True), which polls from every 0.1 s on",
        "notify_result, which makes get() block",
        (20_000, 4_000),
        environment="huey",
    ),
)


def choose(names: Sequence[str]) -> list[System]:
    """The systems of these names, in the order of the table; all if no name is given.

    Raises:
        ValueError: a name is unknown; the message lists the known ones.
    """
    known = [system.name for system in SYSTEMS]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no system is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [system for system in SYSTEMS if not names or system.name in names]

"""The measured systems: streamfleet, the raw limits, and every peer, with sizes and their best settings."""

from __future__ import annotations

from dataclasses import dataclass
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
        environment: name of its virtual environment; empty for streamfleet's own.
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
    environment: str = ""


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

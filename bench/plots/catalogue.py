"""List of all pictures: the data of each, and its description in words. Only drawing needs matplotlib."""

from __future__ import annotations

import hashlib
import importlib
import re
from dataclasses import dataclass
from pathlib import Path

from bench.core.reports import Report

HERE = Path(__file__).parent
HEAD_BYTES = 4096
"""The fingerprint stands in an SVG's metadata, which come first."""


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        name: name of its module here, of its file, and of its place on the page.
        report: measurement with its data.
        needs: keys of `Report.data` without which it cannot be drawn.
        alt: description for readers who cannot see it.
        tables: titles, or beginnings of titles, of the tables below it.
    """

    name: str
    report: str
    needs: tuple[str, ...]
    alt: str
    tables: tuple[str, ...] = ()

    def missing(self, report: Report) -> list[str]:
        """Keys that it needs and the report does not have."""
        return [name for name in self.needs if not report.data.get(name)]

    def fingerprint(self, report_bytes: bytes) -> str:
        """Hash of everything that decides its look: the report, its module, and the modules that all pictures share."""
        digest = hashlib.sha256()
        sources = sorted([*HERE.glob(f"{self.report}_*.py"), HERE / "parts.py", HERE / "style.py"])
        for part in (report_bytes, *(path.read_bytes() for path in sources)):
            digest.update(hashlib.sha256(part).digest())
        return f"{self.report}.json sha256:{digest.hexdigest()}"

    def draw(self, report: Report, path: Path, fingerprint: str) -> None:
        """Draw it into a file; needs matplotlib."""
        from bench.plots import style

        module = importlib.import_module(f"bench.plots.{self.name}")
        with style.rules():
            style.save(module.draw(report.data), path, fingerprint)


def fingerprint_of(path: Path) -> str:
    """The fingerprint in a drawn picture; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        found = re.search(rb"\w+\.json sha256:[0-9a-f]{64}", file.read(HEAD_BYTES))
    return found[0].decode() if found else ""


PICTURES: tuple[Picture, ...] = (
    Picture(
        "broker_throughput",
        "broker",
        ("systems",),
        "Bulk enqueue and drain by one worker of streamfleet and other queues, as ratios to raw redis-py",
    ),
    Picture(
        "broker_round_trips",
        "broker",
        ("systems",),
        "Round trip of one job through streamfleet and other queues, p50 to p99, on defaults and tuned",
    ),
    Picture(
        "broker_memory",
        "broker",
        ("systems",),
        "Bytes of Redis that a queued job takes in streamfleet and other queues",
    ),
    Picture(
        "engine_throughput",
        "engine",
        ("contenders", "batches", "front_end", "ratios"),
        "Output tokens per second of bare AsyncLLM, vllm serve and a streamfleet worker, and CPU time of a front end",
        ("Engine", "Front end"),
    ),
    Picture(
        "engine_latency",
        "engine",
        ("contenders",),
        "Time to the first token and between tokens of bare AsyncLLM, vllm serve and a streamfleet worker, p50 to p99",
    ),
    Picture(
        "batching_sizes",
        "batching",
        ("sizes",),
        "Throughput, time in the engine and how full it is, by batch size",
        ("Batch sizes",),
    ),
    Picture(
        "batching_window",
        "batching",
        ("policies",),
        "Continuous batching beside windows: throughput, latency, and how many requests are in the engine over time",
        ("Policies",),
    ),
    Picture(
        "batching_adaptive",
        "batching",
        ("adaptive",),
        "Throughput against latency for several target latencies, and how many requests are in the engine over time",
        ("Adaptive limit",),
    ),
    Picture(
        "scheduling_inversion",
        "scheduling",
        ("inversion",),
        "Share of critical requests started within so many ms behind a backlog of low ones, beside one engine step",
        ("Inversion",),
    ),
    Picture(
        "scheduling_deadlines",
        "scheduling",
        ("deadlines",),
        "Missed deadlines on a bursty trace: earliest deadline first beside first in, first out, in all and over time",
        ("Deadlines",),
    ),
    Picture(
        "scheduling_shares",
        "scheduling",
        ("starvation",),
        "Per cent of the picks that the lanes high, normal and low get while high always waits, and what is guaranteed",
        ("Starvation",),
    ),
    Picture(
        "scheduling_pickup",
        "scheduling",
        ("pickup",),
        "Share of requests picked up within so many ms by 1, 50 and 500 idle workers, and what these cost Redis",
        ("Pickup", "Idle"),
    ),
    Picture(
        "scheduling_pull_cost",
        "scheduling",
        ("pull_cost",),
        "Server time of pulls, for each request taken, by the number of requests queued",
        ("Pulls",),
    ),
    Picture(
        "scheduling_memory",
        "scheduling",
        ("memory",),
        "Bytes that a queued request of 500 B takes in Redis, as it came and brought in order, by who added it",
        ("Memory",),
    ),
    Picture(
        "scheduling_day",
        "scheduling",
        ("day",),
        "A day of traffic: arrivals and answers a second, outstanding requests by lane, and missed deadlines, by hour",
        ("Day",),
    ),
    Picture(
        "coserving_first_token",
        "coserving",
        ("cases",),
        "Time from enqueueing to the first token of urgent requests on one full engine, by the way to run both kinds",
        ("Co-serving",),
    ),
    Picture(
        "autoscaling_day",
        "autoscaling",
        ("day",),
        "Workers and missed deadlines over a simulated day: by work and deadline pressure, by pending entries, fixed",
        ("Autoscaling",),
    ),
    Picture(
        "planning_error",
        "planning",
        ("simulated",),
        "Times until the answer and late shares that plans predicted, over those of real runs; a band of 25 per cent",
        ("Simulated engine", "vLLM"),
    ),
    Picture(
        "shards_costs",
        "shards",
        ("costs",),
        "CPU of the Redis server for one request by verb, for calls of 1, 8 and 64 requests, and by size of the body",
        ("Costs", "Workers"),
    ),
    Picture(
        "shards_needed",
        "shards",
        ("needs",),
        "Shards that fleets of 100 to 10,000 workers need: idle, long answers, chat, short answers, batch files",
        ("Needs",),
    ),
)

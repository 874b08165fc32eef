"""Definitions of the exporter's metrics. `make docs` writes docs/metrics.md from the texts here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from streamfleet.operator.exporter.view import View
from streamfleet.operator.tenants import TenantView


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, type, help text, and labels in addition to the queue."""

    name: str
    type: str
    help: str
    labels: tuple[str, ...] = ()

    def of(self, queue: str, samples: Iterable[tuple[Sequence[str], float | None]]) -> Metric:
        """Build the metric with values; a value of None has no series."""
        make = CounterMetricFamily if self.type == "counter" else GaugeMetricFamily
        metric = make(self.name, self.help, labels=("queue", *self.labels))
        for labels, value in samples:
            if value is not None:
                metric.add_metric((queue, *labels), value)
        return metric


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name, "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(name, "counter", text, labels)


UP = _gauge(
    "streamfleet_exporter_up", "1 when Redis answered the last look; without, there are no series of the queue."
)
ENTRIES = _gauge("streamfleet_queue_entries", "Entries of a lane: all that have not ended.", "lane")
READY = _gauge("streamfleet_queue_ready", "Entries that wait, in order.", "lane")
RUNNING = _gauge("streamfleet_queue_running", "Entries that workers hold.", "lane")
OLDEST = _gauge("streamfleet_queue_oldest_age_seconds", "Age of the oldest entry; 0 in an empty lane.", "lane")
PRESSURE = _gauge(
    "streamfleet_queue_deadline_pressure_seconds",
    "Largest estimated lateness of what waits with a deadline, at the throughput; negative: time to spare.",
    "lane",
)
OUTSTANDING = _gauge("streamfleet_queue_outstanding", "Entries of all lanes together.")
WORK = _gauge("streamfleet_queue_work_seconds", "What is outstanding, divided by the throughput.")
THROUGHPUT = _gauge(
    "streamfleet_queue_throughput",
    "Requests that the fleet takes per second while any wait, as the workers measure it.",
)
DELAYED = _gauge("streamfleet_queue_delayed", "Requests that wait for their next try.")
DEAD_LETTERS = _gauge("streamfleet_queue_dead_letters", "Dead letters that are kept.")
WORKERS = _gauge(
    "streamfleet_queue_workers", "Workers that gave a sign of life within 30 s, or 1.5 of their leases.", "state"
)
WORKER_SLOTS = _gauge("streamfleet_queue_worker_slots", "Slots of the living workers' engines, as they say.")
WORKER_RUNNING = _gauge("streamfleet_queue_worker_running", "Requests that the living workers hold, as they say.")
ADDED = _counter("streamfleet_queue_requests_added_total", "Entries that ever came into the lanes.")
DUPLICATES = _counter(
    "streamfleet_queue_requests_duplicate_total", "Those of them whose id had ended, or was there, already."
)
REUSED = _counter(
    "streamfleet_queue_requests_id_reused_total", "Those of them whose id was that of a request with another body."
)
ENDED = _counter("streamfleet_queue_requests_ended_total", "Requests that ended, by terminal status.", "status")
TENANT_WAITING = _gauge("streamfleet_tenant_waiting", "Requests of a tenant that wait, in order.", "tenant")
TENANT_RUNNING = _gauge("streamfleet_tenant_running", "Requests of a tenant that run.", "tenant")
TENANT_REQUESTS = _gauge("streamfleet_tenant_requests", "Requests of a tenant that workers have ended.", "tenant")
TENANT_MISSED = _gauge("streamfleet_tenant_missed", "Requests of a tenant that have expired.", "tenant")
TENANT_TOKENS = _gauge("streamfleet_tenant_tokens", "Tokens that a tenant was served.", "tenant")

FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))


def families(queue: str, found: View | None) -> Iterator[Metric]:
    """Yield the metrics of a scrape: all, or only the failure if Redis did not answer.

    Args:
        queue: the queue's name.
        found: the last reading; None if it failed.
    """
    yield UP.of(queue, [((), float(found is not None))])
    if found is not None:
        yield from _of_lanes(queue, found)
        yield from _of_queue(queue, found)
        yield from _of_tenants(queue, found)


def _of_tenants(queue: str, found: View) -> Iterator[Metric]:
    """Series of the tenants with most tokens, and of the rest as "other"; they end an hour after a tenant has gone."""
    values: list[tuple[Family, Callable[[TenantView], float]]] = [
        (TENANT_WAITING, lambda each: each.waiting),
        (TENANT_RUNNING, lambda each: each.running),
        (TENANT_REQUESTS, lambda each: each.requests),
        (TENANT_MISSED, lambda each: each.missed),
        (TENANT_TOKENS, lambda each: each.tokens),
    ]
    for family, value in values:
        yield family.of(queue, [((each.tenant,), value(each)) for each in found.tenants])


def _of_lanes(queue: str, found: View) -> Iterator[Metric]:
    lanes = found.lanes
    yield ENTRIES.of(queue, [((lane.lane,), lane.outstanding) for lane in lanes])
    yield READY.of(queue, [((lane.lane,), lane.staged) for lane in lanes])
    yield RUNNING.of(queue, [((lane.lane,), lane.running) for lane in lanes])
    yield OLDEST.of(queue, [((lane.lane,), lane.oldest_s or 0.0) for lane in lanes])
    yield PRESSURE.of(queue, [((lane.lane,), found.pressure_s.get(lane.lane)) for lane in lanes])


def _of_queue(queue: str, found: View) -> Iterator[Metric]:
    workers = found.workers
    one: list[tuple[Family, float | None]] = [
        (OUTSTANDING, found.outstanding),
        (WORK, found.work_s),
        (THROUGHPUT, found.throughput),
        (DELAYED, found.delayed),
        (DEAD_LETTERS, found.dead_letters),
        (WORKER_SLOTS, workers.slots),
        (WORKER_RUNNING, workers.running),
        (ADDED, found.added),
        (DUPLICATES, found.duplicates),
        (REUSED, found.reused),
    ]
    for family, value in one:
        yield family.of(queue, [((), value)])
    yield WORKERS.of(queue, [((state,), number) for state, number in workers.by_state.items()])
    yield ENDED.of(queue, [((status,), number) for status, number in found.ended.items()])

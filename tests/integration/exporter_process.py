"""A real exporter process, and its pages."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cli_processes import environment
from tests.integration.forked import ForkedProcess
from tests.waiting import eventually_blocking

WITHIN_S = 20.0
Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Page:
    """An answer, and the samples on it by name and labels; the label of the queue is left out."""

    status: int
    text: str

    @property
    def samples(self) -> dict[tuple[str, Labels], float]:
        return {
            (sample.name, frozenset(item for item in sample.labels.items() if item[0] != "queue")): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """Of one sample; None when it is not there."""
        return self.samples.get((name, frozenset(labels.items())))

    def names(self) -> set[str]:
        """Of all samples that streamfleet counts."""
        return {name for name, _ in self.samples if name.startswith("streamfleet_")}


class ExporterProcess:
    """`streamfleet exporter`, listening.

    Attributes:
        port: where.
    """

    def __init__(self, process: ForkedProcess, log: Path) -> None:
        self._process, self._log = process, log
        eventually_blocking(lambda: self._ready() or process.poll() is not None, WITHIN_S, "the exporter listens")
        ready = self._ready()
        assert ready, log.read_text()
        self.port = int(json.loads(ready[0])["port"])

    def _ready(self) -> list[str]:
        return [line for line in self._log.read_text().splitlines() if '"exporter_ready"' in line and line[-1] == "}"]

    def get(self, path: str = "/metrics") -> Page:
        """One page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=WITHIN_S) as answer:
                return Page(answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Page(error.code, error.read().decode())


@contextmanager
def exporter(url: str, *arguments: str, reuse_ms: int = 0) -> Iterator[ExporterProcess]:
    """An exporter that looks anew for whoever asks, unless it is to reuse looks; it has to end well."""
    runs = ["streamfleet.cli", "exporter", "--port", "0", *arguments]
    settings = {"STREAMFLEET_LOG_FORMAT": "json"}
    constants = {"operator.exporter.endpoint.REUSE_S": reuse_ms / 1000}
    with TemporaryDirectory() as folder:
        log = Path(folder) / "exporter.log"
        process = ForkedProcess(runs, environment(url, **settings), log, constants)
        try:
            yield ExporterProcess(process, log)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()

"""A real exporter process, and its pages."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cli_processes import command, environment

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

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []
        self.port = self._listening()

    def _listening(self) -> int:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("{") and (event := json.loads(line))["event"] == "exporter_ready":
                return int(event["port"])
        raise AssertionError("".join(self.said))

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
    process = subprocess.Popen(
        command("exporter", "--port", "0", *arguments),
        env=environment(url, STREAMFLEET_EXPORTER_REUSE_MS=str(reuse_ms), STREAMFLEET_LOG_FORMAT="json"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield ExporterProcess(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()

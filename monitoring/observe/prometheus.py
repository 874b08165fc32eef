"""A private, real Prometheus: on a free port, data in a temporary folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monitoring.observe.processes import ended_after
from tests.support.redis_server import free_port

RULES = Path(__file__).parents[1] / "rules"
START_S = 30.0
MISSING = "there is no prometheus on PATH; Debian and Ubuntu: apt-get install prometheus"


class NoPrometheus(Exception):
    """Prometheus is not installed, or does not start; the message tells the remedy."""


class Prometheus:
    """A running server, queried over HTTP.

    Args:
        url: its URL.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series of an instant query, without those that are NaN (such as a quantile of no data).

        Raises:
            urllib.error.HTTPError: the expression is wrong.
        """
        found: list[dict[str, Any]] = self._get("/api/v1/query", query=expression)["data"]["result"]
        return [series for series in found if series["value"][1] != "NaN"]

    def query_range(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """The series of a query for each second between two moments, epoch seconds."""
        words = {"start": str(start), "end": str(end), "step": "1"}
        found: list[dict[str, Any]] = self._get("/api/v1/query_range", query=expression, **words)["data"]["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules, with the state of their last evaluation."""
        groups = self._get("/api/v1/rules", type="alert")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def is_ready(self) -> bool:
        """True if the server answers."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2):
                return True
        except OSError:
            return False

    def _get(self, path: str, **words: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(words)}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def prometheus(targets: Sequence[str]) -> Iterator[Prometheus]:
    """Start a Prometheus that scrapes these addresses every second and evaluates the alert rules.

    Raises:
        NoPrometheus: it is not installed, or did not start.
    """
    binary = shutil.which("prometheus")
    if binary is None:
        raise NoPrometheus(MISSING)
    with tempfile.TemporaryDirectory() as folder:
        config, log, port = Path(folder, "prometheus.json"), Path(folder, "log"), free_port()
        config.write_text(json.dumps(configuration(targets)), encoding="utf-8")  # JSON is YAML
        command = [
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        with ended_after(process):
            server = Prometheus(f"http://127.0.0.1:{port}")
            _wait(server, process, log)
            yield server


def configuration(targets: Sequence[str]) -> dict[str, Any]:
    """Its configuration."""
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in sorted(RULES.glob("*.yaml"))],
        "scrape_configs": [{"job_name": "streamfleet", "static_configs": [{"targets": list(targets)}]}],
    }


def _wait(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not server.is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NoPrometheus(f"prometheus did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)

"""One sample of one system: its adapter on an empty Redis of its own for every figure, and raw redis-py beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import redis
from rich.console import Console

from bench.broker.environments import command
from bench.broker.sizes import Sizes
from bench.broker.systems import OURS, RAW, System
from bench.core.redis import look, own_server
from bench.core.reports import ROOT
from bench.core.rounds import percentile

ADAPTER_TIMEOUT_S = 240.0
OUR_CALLS_S = 60.0
"""Enough for all round trips that are wanted, on any machine."""
GONE_TIMEOUT_S = 10.0
FAILURES = 2
"""After so many failures of the same figure a system is not asked for it again."""


class AdapterFailed(Exception):
    """An adapter gave no figure; the message is the end of its output."""


class Measurer:
    """Takes samples, and keeps results that are not single figures.

    Args:
        sizes: sizes of the run.
        console: gets each failure at once.

    Attributes:
        failures: system to figure to the reason of every failure.
    """

    def __init__(self, sizes: Sizes, console: Console) -> None:
        self._sizes, self._console = sizes, console
        self._taken: dict[str, int] = {}
        self.failures: dict[str, dict[str, list[str]]] = {}

    def sample(self, system: System) -> dict[str, float]:
        """Every figure of the system, without those that failed."""
        sizes, found, taken = self._sizes, dict[str, float](), self._taken.get(system.name, 0)
        self._taken[system.name] = taken + 1
        raw_jobs = str(sizes.raw_jobs)
        wanted = [
            ("raw_enqueue", RAW, ["enqueue", raw_jobs]),
            ("raw_drain", RAW, ["drain", raw_jobs]),
            ("enqueue", system, ["enqueue", str(sizes.enqueued(system))]),
            ("drain", system, ["drain", str(sizes.drained(system))]),
        ]
        for figure, who, words in wanted:
            found |= self._try(system, figure, who, words)
        seconds = OUR_CALLS_S if system is OURS else sizes.calls_s
        for way, described in (("defaults", system.defaults), ("tuned", system.tuned)):
            if described and (system is OURS or taken < sizes.peers_rounds):
                words = ["roundtrip", str(sizes.calls), "--seconds", str(seconds)]
                found |= self._try(system, way, system, [*words, *(["--tuned"] if way == "tuned" else [])])
        return found

    def _try(self, system: System, figure: str, who: System, words: Sequence[str]) -> dict[str, float]:
        before = self.failures.get(system.name, {}).get(figure, [])
        if len(before) >= FAILURES:
            return {}
        try:
            return self._measure(figure, who, words)
        except AdapterFailed as error:
            self.failures.setdefault(system.name, {}).setdefault(figure, []).append(str(error))
            self._console.print(f"[bold red]{system.title}: {figure} not measured:[/] {error}", highlight=False)
            return {}

    def _measure(self, figure: str, who: System, words: Sequence[str]) -> dict[str, float]:
        with own_server() as server, redis.Redis.from_url(server.url) as client:
            empty = look(client).memory_bytes
            said = run_adapter(who, server.url, words)
            if "ms" in said:
                return {f"{figure}_p50": percentile(said["ms"], 0.5), f"{figure}_p99": percentile(said["ms"], 0.99)}
            found = {figure: said["jobs"] / said["seconds"]}
            if figure == "enqueue":
                found["bytes"] = (settled_bytes(client) - empty) / said["total"]
                if who is OURS:
                    run_adapter(who, server.url, ["stage"])
                    found["staged_bytes"] = (settled_bytes(client) - empty) / said["total"]
            return found


def settled_bytes(client: redis.Redis) -> int:
    """Bytes of data, once all other connections are closed, because their buffers would count as well."""
    give_up = time.monotonic() + GONE_TIMEOUT_S
    while len(client.client_list()) > 1 and time.monotonic() < give_up:
        time.sleep(0.02)
    return look(client).memory_bytes


def run_adapter(system: System, url: str, words: Sequence[str]) -> dict[str, Any]:
    """Run an adapter and return its figures.

    Raises:
        AdapterFailed: it ended with an error, took too long, or printed no figure.
    """
    start, folder = command(system)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMFLEET_", "PYTHON"))}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        try:
            process = subprocess.Popen(
                [*start, url, *words],
                cwd=folder,
                env=kept,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that its worker can be ended with it
            )
        except OSError as error:
            raise AdapterFailed(f"{Path(start[0]).name} does not start: {error.strerror}") from None
        try:
            said, _ = process.communicate(timeout=ADAPTER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AdapterFailed(f"no end within {ADAPTER_TIMEOUT_S:g} s; {_last_line(errors)}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines = said.splitlines()
        if process.returncode or not lines:
            raise AdapterFailed(f"its adapter ended with status {process.returncode}: {_last_line(errors)}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _last_line(errors: Any) -> str:
    errors.seek(0)
    lines = [line.strip().replace(f"{ROOT}/", "") for line in errors.read().splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"

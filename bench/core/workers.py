"""Worker processes to measure: started by their command, ready before any timing, ended by SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import redis

START_S = 300.0  # a real engine on a busy machine
SHORT = ("BATCH_SIZE", "BATCH_TIMEOUT_MS", "TARGET_LATENCY_MS", "VLLM_URL")
"""Settings that are known by short names too: what a shell holds must not get into a measurement."""
STOP_S = 60.0


@contextmanager
def workers(
    redis_url: str,
    count: int = 1,
    *,
    module: str = "streamfleet.worker",
    environment: Mapping[str, object] | None = None,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start so many workers, wait until all are ready, and drain them at the end.

    Args:
        redis_url: their Redis.
        count: number of processes.
        module: module to run: ``bench.core.noop_worker`` for an engine that does nothing.
        environment: settings, by the full names of their variables.

    Raises:
        RuntimeError: one did not become ready; the message has its output.
    """
    settings = {
        "REDIS_URL": redis_url,
        "STREAMFLEET_HEALTH_PORT": "0",
        "STREAMFLEET_LOG_LEVEL": "warning",
        **{name: str(value) for name, value in (environment or {}).items()},
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMFLEET_", *SHORT))}
    with tempfile.TemporaryFile() as log:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", module],
                env={**inherited, **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            for _ in range(count)
        ]
        try:
            _wait_ready(redis_url, started, log)
            yield started
        finally:
            for process in started:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            for process in started:
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far, user and system, all threads."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3): Python asks for those of threads only


def _wait_ready(redis_url: str, started: list[subprocess.Popen[bytes]], log: object) -> None:
    give_up = time.monotonic() + START_S
    with redis.Redis.from_url(redis_url) as client:
        while True:
            described = client.hvals("{default}:workers")
            if sum(b'"state":"ready"' in value.replace(b" ", b"") for value in described) >= len(started):
                return
            if any(process.poll() is not None for process in started) or time.monotonic() > give_up:
                log.seek(0)  # type: ignore[attr-defined]
                raise RuntimeError("a worker did not become ready:\n" + log.read().decode(errors="replace")[-4000:])  # type: ignore[attr-defined]
            time.sleep(0.05)

"""A fleet to look at: Redis, a gateway, two workers with the simulated engine, work that goes on, and dead letters."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from streamfleet.common.protocol import LANES
from streamfleet.producer import Ask, SyncClient
from tests.integration.gateway_process import gateway_on, make_key
from tests.integration.worker_process import WorkerProcess
from tests.programs import BROWSERS, program, skip_without
from tests.servers import newest
from tests.support.redis_server import RedisServer, find_servers
from tests.waiting import eventually_blocking

HERE = Path(__file__).parent
WORKERS = ("worker-a", "worker-b")
EVERY_S = 0.4
SHARES = {"critical": 1, "high": 2, "normal": 3, "low": 4}
"""Of each lane, so many requests a turn."""
HOSTILE = "<img/src=x/onerror=window.hostile=1><script>window.hostile=2</script>"
HOSTILE_IDS = (HOSTILE, "javascript:window.hostile=3", "</pre> <iframe srcdoc='<p>hi'></iframe>")
"""The last one is no id, because of its spaces: its entry's stands for it."""


def need_browser() -> None:
    """Skip the test where no browser can be driven."""
    program("node")
    program(*BROWSERS)
    if not (HERE / "node_modules" / "playwright-core").exists():
        skip_without("playwright-core", "make test installs it")


@dataclass
class Scene:
    """The running servers.

    Attributes:
        url: the gateway's.
        redis_url: the Redis.
        key, plain_key: an operator's, and one that is not.
        answered: request ids that were answered.
    """

    url: str
    redis_url: str
    key: str
    plain_key: str
    answered: list[str] = field(default_factory=list)


@contextmanager
def scene_in(folder: Path) -> Iterator[Scene]:
    """Start everything; work comes until the end."""
    with RedisServer(newest(find_servers())) as server:
        workers = [
            WorkerProcess(server.url, folder, name, simulated_profile="smollm2-cpu", speed=2) for name in WORKERS
        ]
        try:
            with gateway_on(server.url, folder) as gateway:
                key, _ = make_key(server.url, "ops", operator=True)
                plain_key, _ = make_key(server.url, "plain")
                for worker in workers:
                    worker.ready_blocking()
                scene = Scene(gateway.url, server.url, key, plain_key)
                leave_dead_letters(server.url)
                with work_on(scene):
                    eventually_blocking(lambda: scene.answered, 20, "requests are answered")
                    yield scene
        finally:
            for worker in workers:
                worker.destroy()


def question(place: int, tokens: int) -> dict[str, Any]:
    """A body."""
    message = {"role": "user", "content": f"Summarise ticket {4000 + place} in one sentence."}
    return {"messages": [message], "max_tokens": tokens, "ignore_eos": True}


@contextmanager
def work_on(scene: Scene) -> Iterator[None]:
    """Requests of several tenants come in all lanes, a backlog in the lowest first."""
    stopped = threading.Event()
    thread = threading.Thread(target=_work, args=(scene, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(20)


def _work(scene: Scene, stopped: threading.Event) -> None:
    with SyncClient(scene.redis_url) as fleet:
        backlog = [
            Ask(body=question(place, 48), lane="low", id=f"nightly-{place}", tenant="reports") for place in range(1500)
        ]
        fleet.enqueue_many(backlog)
        turn = 0
        while not stopped.wait(EVERY_S):
            for lane, count in SHARES.items():
                for part in range(count):
                    name = f"chat-{turn * 10 + part}-{lane}"
                    body, tenant = question(turn, 24 + turn % 40), ("acme", "globex", "initech")[turn % 3]
                    fleet.enqueue(body, lane=lane, id=name, tenant=tenant, ttl_ms=None if lane == "low" else 60_000)
            turn += 1
            name = f"chat-{max(0, turn - 12) * 10}-critical"
            if name not in scene.answered and fleet.status(name).state == "succeeded":
                scene.answered.append(name)


def leave_dead_letters(url: str) -> None:
    """Requests that end without success: hostile ones, malformed ones, one whose time had passed."""
    with redis.Redis.from_url(url) as rows:
        for name in HOSTILE_IDS:
            body = json.dumps({"messages": HOSTILE, "max_tokens": -1})
            rows.xadd("{default}:lane:normal", {"id": name, "body": body, "tenant": HOSTILE[:60], "meta": HOSTILE})
        rows.xadd("{default}:lane:high", {"id": "broken-1", "body": f"not JSON {HOSTILE}"})
        rows.xadd("{default}:lane:high", {"id": "broken-2", "body": '{"messages": []}'})
        rows.xadd("{default}:lane:normal", {"id": "late-1", "body": json.dumps(question(1, 8)), "ttl": "1"})
        wanted = len(HOSTILE_IDS) + 3
        eventually_blocking(lambda: rows.xlen("{default}:dead") >= wanted, 20, "they are dead letters")
        assert not any(rows.xlen(f"{{default}}:lane:{lane}") for lane in LANES)


def node(script: str, scene: dict[str, Any], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder."""
    arguments = json.dumps({"chromium": program(*BROWSERS), **scene})
    environment = {
        name: value for name, value in os.environ.items() if name.lower() not in ("http_proxy", "https_proxy")
    }
    return subprocess.run(
        ["node", str(HERE / script), arguments],
        cwd=HERE, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip

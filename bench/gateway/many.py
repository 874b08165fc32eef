"""Many streams at once through one gateway: checks that none is cut, all are alike, and measures token lag."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx

from bench.core.reports import ROOT
from bench.core.rounds import Sample, interleave, percentile
from bench.engine.batch import OtherWork
from bench.gateway import paced_worker
from bench.gateway.stage import Stage, staged
from streamfleet.common.protocol import CHAT

READERS_S = 300.0
MODEL = "simulated"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TEXTS: dict[str, Callable[[Any], str]] = {
    CHAT: lambda answer: answer["choices"][0]["message"]["content"],
    RESPONSES: lambda answer: answer["output"][0]["content"][0]["text"],
    MESSAGES: lambda answer: answer["content"][0]["text"],
}
"""The text of an answer, by its endpoint."""
SPARE, SPARE_SLOTS = 1.25, 4
"""Room of a worker: all streams run at once, though the workers do not share them evenly."""


@dataclass(frozen=True)
class Load:
    """Requests of the readers.

    Attributes:
        streams: number of concurrent streams.
        tokens_per_s: rate of each stream.
        tokens: tokens of each answer.
        workers: number of workers that share the streams.
        over_s: seconds in which all streams begin.
        model: model that the requests name.
        path: endpoint of the requests.
    """

    streams: int
    tokens_per_s: float
    tokens: int
    workers: int
    over_s: float
    model: str = MODEL
    path: str = CHAT

    @property
    def body(self) -> dict[str, object]:
        """Body of every request."""
        messages = [{"role": "user", "content": "one two three four five six seven eight nine ten"}]
        said, most = ("input", "max_output_tokens") if self.path == RESPONSES else ("messages", "max_tokens")
        return {"model": self.model, said: messages, most: self.tokens, "ignore_eos": True}


@dataclass(frozen=True)
class Seen:
    """Result of a run.

    Attributes:
        streams, whole, texts, at_once: numbers of streams asked for, ended well, with different texts, and at once at
        most.
        same: true if all that ended well have the text of the same request unstreamed.
        p50_ms, p99_ms, most_ms: lag from an entry's time in Redis to its arrival.
        entries, sends: groups of tokens in Redis, and pieces in which they arrived.
        seconds: time from the first to the last byte.
        cores: share of a core that each part took.
    """

    streams: int
    whole: int
    texts: int
    at_once: int
    same: bool
    p50_ms: float
    p99_ms: float
    most_ms: float
    entries: int
    sends: int
    seconds: float
    cores: Mapping[str, float]


def measure(load: Load) -> Seen:
    """Start everything, read all streams, and end everything."""
    slots = round(SPARE * load.streams / load.workers) + SPARE_SLOTS
    settings = paced_worker.environment(load.tokens_per_s, slots)
    with staged(settings, module="bench.gateway.paced_worker", count=load.workers) as stage:
        return read(stage, load)


def apis(load: Load, rounds: int) -> dict[str, list[Sample]]:
    """CPU of an answer of this load by each API, by turns."""
    return interleave({path: partial(_sample, replace(load, path=path)) for path in TEXTS}, rounds)


def _sample(load: Load) -> Sample:
    seen = measure(load)
    if seen.whole < load.streams or not seen.same:
        raise OtherWork(f"{seen.whole} of {load.streams} streams whole, {seen.texts} texts")
    ms = {part: cores * seen.seconds / load.streams * 1000 for part, cores in seen.cores.items()}
    figures = {"gateway": ms["gateway"], "worker": ms["worker 1"], "redis": ms["redis"]}
    return {**figures, "groups": seen.entries / load.streams, "cores": sum(seen.cores.values()), "p99_ms": seen.p99_ms}


def read(stage: Stage, load: Load) -> Seen:
    """Ask for the same answer unstreamed, then read all streams at once."""
    asked = httpx.post(
        stage.url + load.path,
        json=load.body,
        headers=stage.headers,
        timeout=READERS_S,
        trust_env=False,
    )
    answer = asked.raise_for_status().json()
    text = TEXTS[load.path](answer)
    command = [sys.executable, "-m", "bench.gateway.readers", str(stage.port), str(load.streams), str(load.over_s)]
    given = "\n".join([load.path, json.dumps({**load.body, "stream": True}), stage.key, ""])
    before = stage.cpu()
    ran = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=READERS_S, check=False)
    after = stage.cpu()
    if ran.returncode:
        raise RuntimeError(f"the readers failed:\n{ran.stderr[-4000:]}")
    found = json.loads(ran.stdout)
    lags, seconds = found["lags_ms"] or [float("inf")], found["seconds"]
    spent = {part: after[part] - before[part] for part in before} | {"readers": found["cpu_s"]}
    return Seen(
        streams=found["streams"],
        whole=found["whole"],
        texts=found["texts"],
        at_once=found["at_once"],
        same=found["texts"] == 1 and found["text"] == text,
        p50_ms=percentile(lags, 0.5),
        p99_ms=percentile(lags, 0.99),
        most_ms=max(lags),
        entries=len(lags),
        sends=found["sends"],
        seconds=seconds,
        cores={part: spent[part] / seconds for part in spent},
    )

"""Homes of requests as the scripts' index tells them, and what must hold of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamfleet.common.keys import Keys
from streamfleet.common.protocol import LANES, Lane
from tests.scripts.histories.labelled_books import Request
from tests.scripts.keyspace import Dump, text

PASSED_OVER_MS, LOST = 1_000, 10**9
"""Time for which a request is left to its home; load of one that is none any more."""


class Homes:
    """The index of homes at one moment.

    Attributes:
        of: by request the name of the worker that it waits for; empty for nobody, `gone` for one that is no home.
        marks: by lane the time since which its first request is passed over.
    """

    @staticmethod
    def commands(keys: Keys) -> list[Sequence[Any]]:
        """Commands whose replies `of_replies` takes."""
        sets = [("ZRANGE", key, 0, -1, "WITHSCORES") for key in (keys.homes, keys.loads)]
        return [("HGETALL", keys.sessions), *sets]

    @classmethod
    def of_replies(cls, replies: Sequence[list[bytes]]) -> Homes:
        sessions, homes, loads = ([*map(text, reply)] for reply in replies)
        scored = [
            [(name, float(score)) for name, score in zip(flat[::2], flat[1::2], strict=True)] for flat in (homes, loads)
        ]
        known = dict(zip(sessions[::2], sessions[1::2], strict=True))
        return cls({"sessions": known, "homes": scored[0], "loads": scored[1]})

    def __init__(self, dump: Dump) -> None:
        known = dump.get("sessions", {})
        alive = {number for number, load in dump.get("loads", []) if load < LOST}
        records = {name[2:]: words.partition(" ")[0] for name, words in known.items() if name.startswith("n|")}
        names = {"0": ""} | {number: name for name, number in records.items() if number in alive}
        self.of: dict[str, str] = {}
        for member, place in dump.get("homes", []):
            stream_id = "-".join(part[1:] for part in member[17:].split("-"))
            self.of[f"{LANES[int(member[0]) - 1]}:{stream_id}"] = names.get(str(int(place) % 2**40), "gone")
        self.marks = {name[1:]: int(words.partition(" ")[0]) for name, words in known.items() if name[0] == "^"}

    def check_taken(self, lane: Lane, taken: Sequence[Request], worker: str, now: int) -> None:
        """Check requests taken where no tenant waits: another worker's waited for long, the others go by deadline."""
        mine = [request for request in taken if self.of.get(request.name) in ("", worker)]
        ranks = [request.rank for request in mine]
        assert ranks == sorted(ranks), f"{lane}: {ranks} is not by deadline"
        passed = now - self.marks.get(str(lane.number), now)
        for request in taken:
            home = self.of.get(request.name, worker)
            waited = max(now - request.enqueued, passed)
            assert home in ("", "gone", worker) or waited >= PASSED_OVER_MS, f"{request.name} waits for {home}"

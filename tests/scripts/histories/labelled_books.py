"""Requests and tenants of a history: who has what, what it is charged, and what a pull may take.

Today's scripts choose by rules of their own where requests have tenants or homes. Here stands what they share with the
plain model of the order: charges, limits, counts, ranks, and that nobody idles beside work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamfleet.common.broker.types import Lease
from streamfleet.common.protocol import LANES, Lane
from tests.order.tenants import NO_LIMIT, Charge, Tenant, Use, cost_of, stays_of
from tests.scripts.histories.model import READY, UNDELIVERED, Place, places_of
from tests.scripts.keyspace import Dump, id_key

HOLD_MS, PATIENCE_MS, NEARLY_LATE_MS = 10_000, 300_000, 3_000
WAITING = {UNDELIVERED, READY}
LONG = 1_024
"""Bytes of a body that may have a home."""


@dataclass(eq=False)
class Request:
    """One entry, until it ends.

    Attributes:
        limit: output that it asks for; None if it says nothing.
        since: time since which it could be taken, epoch ms.
        place: as `places_of` tells it, an undelivered one as `READY`.
        held: until when it waits for the worker that it gave way on, and that worker.
        charge: what its tenant is charged for it.
    """

    lane: Lane
    stream_id: str
    id: str
    tenant: str
    session: str
    deadline: int | None
    enqueued: int
    bytes: int
    limit: int | None
    since: int
    place: Place = READY
    tries: int = 0
    held: tuple[int, str] = (0, "")
    charge: Charge = field(default_factory=Charge)
    cancelled: bool = False

    @property
    def name(self) -> str:
        return f"{self.lane}:{self.stream_id}"

    @property
    def rank(self) -> tuple[int, tuple[int, int]]:
        return self.deadline or self.enqueued + PATIENCE_MS, id_key(self.stream_id)

    @property
    def member(self) -> str:
        return f"{self.lane.number}|{self.stream_id}"

    def late(self, at: int) -> bool:
        return self.deadline is not None and self.deadline <= at


@dataclass
class Known:
    """A tenant: `order` by the model, and what an operator has set and the scripts may not have seen.

    Attributes:
        weights, limits: values that may count now; the last is the newest, and the only one once the housekeeping came.
        free_since: time since which it has run fewer than it may.
    """

    order: Tenant = field(default_factory=Tenant)
    weights: list[float] = field(default_factory=lambda: [1.0])
    limits: list[int] = field(default_factory=lambda: [NO_LIMIT])
    free_since: int = 0
    requests: int = 0
    """Number of its charged runs that ended their requests."""


class Books:
    """Requests by name, tenants by name, and how many ended in which way."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.tenants: dict[str, Known] = {}
        self.ended: Counter[str] = Counter()

    def tenant(self, name: str) -> Known:
        return self.tenants.setdefault(name, Known())

    def waiting(self) -> list[Request]:
        return [request for request in self.requests.values() if request.place == READY and not request.cancelled]

    def held_by(self, worker: str) -> list[Request]:
        return [request for request in self.requests.values() if request.place[:2] == ("running", worker)]

    # -- what happens ----------------------------------------------------------------------------------------------

    def pick(self, request: Request, worker: str, lease: Lease, now: int, *, charged: bool) -> None:
        """It runs now, and its tenant is charged what it is likely to use."""
        assert request.place == READY, f"{request.name} was given out, and is {request.place}"
        assert not request.cancelled, f"{request.name} was given out, and is cancelled"
        assert not request.late(now), f"{request.name} was given out after its deadline"
        assert lease.attempt == request.tries + 1, f"{request.name}: attempt {lease.attempt} after {request.tries}"
        assert lease.request_id == request.id
        tenant = self.tenant(request.tenant).order
        request.place = ("running", worker, lease.attempt)
        if charged:
            request.charge = Charge(*tenant.estimate(request.bytes, request.limit), kept=request.charge.kept, runs=True)
            tenant.charged += request.charge.run
            tenant.running += 1

    def _stop(self, request: Request, cost: int, now: int) -> None:
        """A run that was charged is over, and is charged `cost` in place of that."""
        known, charge = self.tenant(request.tenant), request.charge
        if charge.runs:
            known.order.charged += cost - charge.run
            known.order.running -= 1
            if known.order.running == known.limits[-1] - 1:
                known.free_since = now
        request.charge = Charge(kept=charge.kept)

    def settle(self, request: Request, use: Use, now: int) -> None:
        """A worker ends its run."""
        known, charge = self.tenant(request.tenant), request.charge
        tenant = known.order
        if charge.runs:
            cost = cost_of(charge, use)
            tenant.tokens += cost + charge.kept
            known.requests += 1
            self._stop(request, cost, now)
            request.charge = Charge()
            if use.prompt is not None and use.succeeded:
                tenant.learn(request.bytes, request.limit, use.prompt, use.output)

    def end(self, request: Request, status: str, now: int) -> None:
        """It is gone; what nobody settled is not charged."""
        self._stop(request, 0, now)
        self.tenant(request.tenant).order.tokens += request.charge.kept
        self.ended["cancelled" if request.cancelled else status] += 1
        del self.requests[request.name]

    def give_back(
        self,
        request: Request,
        now: int,
        generated: int | None,
        *,
        due: int = 0,
        failed: bool = False,
        held: int | None = None,
    ) -> None:
        """It waits again; `generated`: tokens that stay charged, None if its work is lost; `held` as in `Use`."""
        charge = request.charge
        if charge.runs:
            self.tenant(request.tenant).order.lost += charge.run if generated is None and not failed else 0
            charge.kept += (stays := stays_of(charge, generated=generated, failed=failed, held=held))
            self._stop(request, stays, now)
        request.place = ("delayed", due) if due else READY
        request.since = now

    # -- what must hold --------------------------------------------------------------------------------------------

    def compare(self, dump: Dump, now: int) -> None:
        """Every entry stands where it must, and every tenant was charged what it must."""
        places = {name: READY if place in WAITING else place for name, place in places_of(dump).items()}
        for name in self.requests.keys() - places.keys():
            request = self.requests[name]
            assert request.place[0] != "running", f"{name} is gone while it runs"
            assert request.cancelled or request.late(now), f"{name} is gone for no reason"
            self.end(request, "expired", now)
        assert places == {name: request.place for name, request in self.requests.items()}
        counts = {name: int(number) for name, number in dump.get("counts", {}).items() if name != "staged"}
        assert counts == +self.ended
        self._compare_charges(dump.get("served", {}))
        for lane in LANES:
            self._compare_index(lane, dump)

    def _compare_charges(self, served: Mapping[str, str]) -> None:
        charges: dict[str, list[Any]] = {
            request.member: [request.charge.prompt, request.charge.output, request.charge.kept, request.tenant]
            for request in self.requests.values()
            if request.charge.runs or request.charge.kept
        }
        found: dict[str, list[Any]] = {}
        for key, charge in served.items():
            if key.startswith("c|"):
                prompt, output, _, kept, _, name = charge.split(" ", 5)
                found[key[2:]] = [int(prompt), int(output), int(kept), name]
        assert found == charges
        for name, seen in self.tenants.items():
            tenant = seen.order
            words = served.get(f"t|{name}")
            if words is None and tenant.running == 0:
                continue  # it was forgotten, or never came
            known = [tenant.running, seen.requests, tenant.charged, tenant.tokens, tenant.lost]
            assert [int(word) for word in (words or "").split()[:5]] == known, f"{name!r}: {words}, not {known}"

    def _compare_index(self, lane: Lane, dump: Dump) -> None:
        """In the index stands what is ready, by tenant; in turn is who waits and may run one more."""
        ready = {stream_id for stream_id, _ in dump.get(f"ready:{lane}", [])}
        waiting: dict[str, set[str]] = {}
        for member, _ in dump.get("waiting", []):
            if member[0] == str(lane.number):
                tenant, place, _ = member[1:].split("\0")
                waiting.setdefault(tenant, set()).add("-".join(part[1:] for part in place[16:].split("-")))
        for name, known in self.tenants.items():
            mine = {id_ for id_ in ready if self.requests[f"{lane}:{id_}"].tenant == name}
            assert not name or waiting.get(name, set()) == mine, f"{lane}: {name!r} has {mine}, in the index {waiting}"
            in_turn = dict(dump.get(f"turns:{lane}", [])).get(name, -1) >= 0
            if name and len(known.limits) == 1:
                may = bool(mine) and known.order.running < known.limits[0]
                assert bool(mine) >= in_turn >= may, f"{lane}: {name!r} is {'' if in_turn else 'not '}in turn"

    def check_taken(self, lane: Lane, taken: Sequence[Request], now: int) -> bool:
        """Check that a tenant's earliest deadline went first. Returns False, unchecked, where something has a home."""
        left = [request for request in self.waiting() if request.lane is lane and not request.late(now)]
        if any(request.session or request.bytes >= LONG or request.held[0] > now for request in [*left, *taken]):
            return False
        for tenant in {request.tenant for request in taken}:
            ranks = [request.rank for request in taken if request.tenant == tenant]
            others = [request.rank for request in left if request.tenant == tenant]
            assert ranks == sorted(ranks), f"{lane}: {ranks} is not by deadline"
            assert not others or max(ranks) < min(others), f"{lane}: {min(others)} waits behind {max(ranks)}"
        return True

    def check_turns(self, lane: Lane, taken: Sequence[Request], turns: Mapping[str, float], now: int) -> None:
        """Nobody that waits was charged less than one that was picked had been before its last pick."""
        hurried = any(request.deadline and request.deadline <= now + NEARLY_LATE_MS for request in taken)
        if hurried or any(len(self.tenant(name).weights) > 1 for name in turns):
            return
        for tenant in {request.tenant for request in taken if request.tenant in turns}:
            last = [request for request in taken if request.tenant == tenant][-1]
            score = turns[tenant]
            cost = last.charge.run / self.tenant(tenant).weights[0]
            before = (score if score >= 0 else -1 - score) - cost
            for other, least in turns.items():
                assert other == tenant or not 0 <= least < before - 1e-3, f"{lane}: {tenant!r} goes before {other!r}"

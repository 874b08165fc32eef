"""A day of requests under each trigger of the chart: the arithmetic of KEDA and of the HorizontalPodAutoscaler.

`python -m tests.integration.k8s_day` writes the table into docs/deploy.md. Bounds, thresholds, periods, the formula and
the drain are those of the rendered manifests. Of KEDA (keda.sh/docs/2.17: reference/scaledobject-spec,
concepts/scaling-deployments, scalers/redis-streams; pkg/scaling/executor/scale_scaledobjects.go):

- It scales from 0 to 1 itself, and to 0 once nothing was active for `cooldownPeriod`; it looks each `pollingInterval`.
  A trigger is active above its activation value; `scalingModifiers` put one number and one target in place of all.
- Streams are read by `streamLength` (XLEN), unless there is a `consumerGroup`: then by `lagCount` (not yet delivered),
  or else by `pendingEntriesCount` (delivered, not acknowledged).

Of the HorizontalPodAutoscaler, which scales from 1 on (kubernetes.io/docs/tasks/run-application/
horizontal-pod-autoscale; pkg/controller/podautoscaler): each metric asks for its value divided by its target, rounded
up, or for no change within the tolerance; the largest counts. Then come windows, policies and bounds.

Workers have slots at the speed of a full engine, as it was measured for `streamfleet plan`. More urgent lanes go first,
within a lane the earliest deadline. Not simulated: a scrape's delay, pods without a node, workers that die, shares.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

from bench.pages import refilled
from streamfleet.common.protocol import LANES, Lane
from streamfleet.operator.exporter.view import pressure_s
from streamfleet.operator.plan.arrivals import Arrival
from streamfleet.operator.plan.profile import EngineProfile
from streamfleet.operator.snapshot import LaneView
from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU
from tests.integration.k8s_chart import charted
from tests.integration.k8s_formula import PARTS, STEP_S, View
from tests.integration.k8s_manifests import ROOT, Manifest, environment_of, only, pod_of, pools

PAGE = ROOT / "docs" / "deploy.md"
TRIGGERS = ("prometheus", "redis-streams")
ENGINE = EngineProfile(SMOLLM2_135M_CPU)
SLOTS, PROMPT_TOKENS = ENGINE.engine.slots, 100
START_S = 120.0
"""From the pod to a loaded model."""
TOLERANCE = 0.1
"""Default of the HorizontalPodAutoscaler: it changes nothing within 10 % of its target."""
PATIENCE_S, NO_DEADLINE_S = 300.0, 1e9
SEED, MORNING_H, PER_S = 7, 6, 4.0
KINDS = {
    # Share, deadline in seconds, output tokens.
    Lane.CRITICAL: (0.05, (30, 30), (16, 64)),
    Lane.HIGH: (0.55, (60, 120), (64, 256)),
    Lane.NORMAL: (0.30, (300, 900), (64, 256)),
    Lane.LOW: (0.10, None, (128, 384)),
}


@cache
def day(hours: float = 24) -> list[Arrival]:
    """One request an hour until six; then a wave, highest at 16 o'clock, and bursts of 2.5 times, 5 minutes in 120."""
    chance = random.Random(SEED)
    bursts = [hour * 3600 + chance.uniform(0, 6900) for hour in range(0, 24, 2)]
    times = [(hour + 0.5) * 3600 for hour in range(MORNING_H)]
    at_s = MORNING_H * 3600.0
    while (at_s := at_s + chance.expovariate(PER_S * 1.7 * 2.5)) < hours * 3600:
        rate = 1 - 0.7 * math.cos((at_s / 3600 - 4) / 24 * 2 * math.pi)
        if chance.random() * 1.7 * 2.5 < rate * (2.5 if any(0 <= at_s - each < 300 for each in bursts) else 1):
            times.append(at_s)
    lanes = chance.choices(list(KINDS), [share for share, _, _ in KINDS.values()], k=len(times))
    drawn = [(at_s, lane, *KINDS[lane][1:]) for at_s, lane in zip(times, lanes, strict=True)]
    return [
        Arrival(at_s, lane, PROMPT_TOKENS, chance.randint(*tokens), life and chance.uniform(*life))
        for at_s, lane, life, tokens in drawn
    ]


def rendered(by: str) -> list[Manifest]:
    """The chart's manifests with this trigger, and as many requests a worker as it runs at once."""
    return charted(values={"worker": {"autoscaling": {"by": by, "requestsPerWorker": SLOTS}}})


class Autoscaler:
    """The HorizontalPodAutoscaler of a ScaledObject. Without a `selectPolicy`, the largest change is allowed."""

    def __init__(self, spec: Manifest) -> None:
        self._rules = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        self._least, self._most = int(spec["minReplicaCount"]) or 1, int(spec["maxReplicaCount"])
        self._wishes, self._changes = deque[tuple[float, int]](), deque[tuple[float, int]]()

    def replicas(self, now_s: float, having: int, metrics: list[tuple[float, float]]) -> int:
        """Replicas from now on, by each metric's value and its target for one replica."""
        ratios = [(value / target, value / target / having) for value, target in metrics]
        wish = max(having if abs(ratio - 1) <= TOLERANCE else math.ceil(whole) for whole, ratio in ratios)
        self._wishes.append((now_s, wish))
        up, down = (
            [wanted for at_s, wanted in self._wishes if at_s > now_s - self._rules[way]["stabilizationWindowSeconds"]]
            for way in ("scaleUp", "scaleDown")
        )
        wish = min(max(having, min([*up, wish])), max([*down, wish]))
        highest, lowest = self._allowed(now_s, having)
        wish = max(self._least, min(self._most, max(lowest, min(highest, wish))))
        self._changes.append((now_s, wish - having))
        while self._wishes[0][0] < now_s - 3600:  # the longest window that Kubernetes takes
            self._wishes.popleft()
            self._changes.popleft()
        return wish

    def _allowed(self, now_s: float, having: int) -> tuple[int, int]:
        limits: dict[str, list[int]] = {"scaleUp": [], "scaleDown": []}
        for (way, found), sign in zip(limits.items(), (1, -1), strict=True):
            for policy in self._rules[way]["policies"]:
                since_s = now_s - policy["periodSeconds"]
                start = having - sum(change for at_s, change in self._changes if at_s > since_s)
                by = policy["value"] if policy["type"] == "Pods" else start * policy["value"] / 100
                found.append(math.ceil(start + by) if sign > 0 else int(start - by))
        return max(having, *limits["scaleUp"]), min(having, *limits["scaleDown"])


@dataclass(eq=False)
class Worker:
    """A pod, from when it is asked for; with the requests that it runs. It ends after its drain."""

    asked_s: float
    ready_s: float
    running: set[int] = field(default_factory=set)
    leaving: bool = False


class Pace:
    """Requests taken a second while some wait, as the queue measures it (streamfleet.worker.services.pace)."""

    def __init__(self) -> None:
        self._at_s, self._taken, self._waiting = 0.0, 0, False
        self._took_s = self._left = 0.0

    def look(self, now_s: float, taken: int, *, waiting: bool) -> float | None:
        """The pace, by the number taken so far; None while it is not known."""
        if waiting and self._waiting:
            passed_s, rate = now_s - self._at_s, self._left / self._took_s if self._took_s else 1000.0
            fade = math.exp(-passed_s / min(120.0, max(10.0, 100 / max(rate, 1e-3))))
            self._took_s = self._took_s * fade + passed_s
            self._left = self._left * fade + taken - self._taken
        self._at_s, self._taken, self._waiting = now_s, taken, waiting
        return max(1.0, self._left) / self._took_s if self._took_s else None


@dataclass
class Outcome:
    """Counts of one day. `late` is requests after their deadline, `late_of_cold` those that no worker was ready for."""

    requests: int
    unanswered: int
    late: int = 0
    late_of_cold: int = 0
    worker_s: float = 0.0
    most: int = 0
    wakes: int = 0
    sleeps: int = 0
    handed_back: int = 0


class Simulation:
    """One day under one ScaledObject. Call `run` once."""

    def __init__(self, manifests: list[Manifest], arrivals: list[Arrival]) -> None:
        self._spec: Manifest = only(manifests, "ScaledObject")["spec"]
        pod = pod_of(pools(manifests)[0])
        drain_s = int(environment_of(pod["containers"][0], manifests)["STREAMFLEET_DRAIN_MS"]) / 1000
        self._drain_s = min(drain_s, pod["terminationGracePeriodSeconds"])  # then it is killed
        self._arrivals, self._hpa, self._pace = arrivals, Autoscaler(self._spec), Pace()
        self._workers: list[Worker] = []
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in LANES]
        self._unread, self._held, self._cold = [0] * len(LANES), [0] * len(LANES), set[int]()
        self._taken, self._active_s = 0, -math.inf
        self._order, self._events = count(), list[tuple[float, int, Callable[..., None], tuple[Any, ...]]]()
        self.outcome = Outcome(len(arrivals), len(arrivals))

    def run(self) -> Outcome:
        """From midnight until two hours after the last request."""
        for place, arrival in enumerate(self._arrivals):
            self._at(arrival.at_s, self._arrive, place)
        self._at(0.0, self._poll)
        self._at(0.0, self._sync)
        while self._events and self._events[0][0] < self._arrivals[-1].at_s + 7200:
            self._now_s, _, happens, about = heapq.heappop(self._events)
            happens(*about)
            self._dispatch()
        for worker in self._workers:
            self._end(worker)
        return self.outcome

    def _at(self, at_s: float, happens: Callable[..., None], *about: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happens, about))

    def _arrive(self, place: int) -> None:
        self._unread[self._arrivals[place].lane.rank] += 1
        if not self._ready():
            self._cold.add(place)
        self._enqueue(place)

    def _enqueue(self, place: int) -> None:
        arrival = self._arrivals[place]
        life_s = PATIENCE_S if arrival.deadline_s is None else arrival.deadline_s
        heapq.heappush(self._waiting[arrival.lane.rank], (arrival.at_s + life_s, place))

    def _dispatch(self) -> None:
        """Workers with room take what is most urgent; any ready worker reads all that came, to put it in order."""
        ready = self._ready()
        if ready:
            self._unread = [0] * len(LANES)
        free = sum(SLOTS - len(each.running) for each in ready)
        while free and (lane := next(filter(None, self._waiting), None)):
            _, place = heapq.heappop(lane)
            arrival, self._taken = self._arrivals[place], self._taken + 1
            due_s = arrival.at_s + (arrival.deadline_s or NO_DEADLINE_S)
            if due_s <= self._now_s:
                self._answer(place, due_s)
                continue
            free -= 1
            worker = min(ready, key=lambda each: len(each.running))
            worker.running.add(place)
            self._held[arrival.lane.rank] += 1
            done_s = self._now_s + ENGINE.work_s(arrival.prompt_tokens, arrival.output_tokens) * SLOTS
            self._at(min(due_s, done_s), self._ended, worker, place, due_s)

    def _ended(self, worker: Worker, place: int, due_s: float) -> None:
        if self._leave(worker, place):
            self._answer(place, due_s)
            if worker.leaving and not worker.running:
                self._end(worker)

    def _leave(self, worker: Worker, place: int) -> bool:
        held = place in worker.running
        if held:
            worker.running.remove(place)
            self._held[self._arrivals[place].lane.rank] -= 1
        return held

    def _answer(self, place: int, due_s: float) -> None:
        self.outcome.unanswered -= 1
        self.outcome.late += due_s <= self._now_s
        self.outcome.late_of_cold += due_s <= self._now_s and place in self._cold

    def _ready(self) -> list[Worker]:
        return [each for each in self._workers if not each.leaving and each.ready_s <= self._now_s]

    def _replicas(self) -> int:
        return sum(not each.leaving for each in self._workers)

    def _poll(self) -> None:
        """KEDA wakes the first worker, and sends all away once nothing has been active for long enough."""
        having = self._replicas()
        if any(value > least for value, least, _ in self._read()):
            self._active_s = self._now_s
            if not having:
                self.outcome.wakes += 1
                self._resize(max(1, self._spec["minReplicaCount"]))
        elif having and self._active_s + self._spec["cooldownPeriod"] < self._now_s:
            self.outcome.sleeps += not self._spec["minReplicaCount"]
            self._resize(self._spec["minReplicaCount"])
        self._at(self._now_s + self._spec["pollingInterval"], self._poll)

    def _sync(self) -> None:
        """The HorizontalPodAutoscaler rests while there is none."""
        if having := self._replicas():
            metrics = [(value, target) for value, _, target in self._read()]
            self._resize(self._hpa.replicas(self._now_s, having, metrics))
        self._at(self._now_s + STEP_S, self._sync)

    def _resize(self, wanted: int) -> None:
        """Pods that are not ready go first, then the youngest."""
        having = [each for each in self._workers if not each.leaving]
        self.outcome.most = max(self.outcome.most, wanted)
        for _ in range(wanted - len(having)):
            self._workers.append(Worker(self._now_s, self._now_s + START_S))
            self._at(self._now_s + START_S, lambda: None)
        for worker in sorted(having, key=lambda each: each.ready_s)[wanted:]:
            worker.leaving = True
            if worker.running:
                self._at(self._now_s + self._drain_s, self._hand_back, worker)
            else:
                self._end(worker)

    def _hand_back(self, worker: Worker) -> None:
        if worker not in self._workers:
            return
        for place in list(worker.running):
            self._leave(worker, place)
            self._enqueue(place)
            self.outcome.handed_back += 1
        self._end(worker)

    def _end(self, worker: Worker) -> None:
        self._workers = [each for each in self._workers if each is not worker]
        self.outcome.worker_s += self._now_s - worker.asked_s

    def _read(self) -> Iterator[tuple[float, float, float]]:
        """Each metric's value, its activation value, its target."""
        modifiers = self._spec["advanced"].get("scalingModifiers")
        triggers = {each["name"]: each["metadata"] for each in self._spec["triggers"]}
        if not modifiers:
            view = self._view()
            for name, metadata in triggers.items():
                yield PARTS[name](view), float(metadata["activationThreshold"]), float(metadata["threshold"])
            return
        value = sum(self._count(triggers[name]) for name in modifiers["formula"].split(" + "))
        yield value, float(modifiers.get("activationTarget", 0)), float(modifiers["target"])

    def _count(self, metadata: Mapping[str, str]) -> int:
        lane = Lane(metadata["stream"].rpartition(":")[2]).rank
        if "consumerGroup" not in metadata:
            return len(self._waiting[lane]) + self._held[lane]
        return self._unread[lane] if "lagCount" in metadata else self._held[lane]

    def _view(self) -> View:
        """The exporter's numbers."""
        ready, running, waiting = len(self._ready()), sum(self._held), sum(map(len, self._waiting))
        pace = self._pace.look(self._now_s, self._taken, waiting=waiting > 0)
        late = pressure_s(list(self._lanes()), pace) if pace and ready else {}
        work_s = (running + waiting) / pace if pace else None
        return View(ready, SLOTS, running, running + waiting, work_s, max(late.values(), default=None))

    def _lanes(self) -> Iterator[LaneView]:
        for lane, heap in zip(LANES, self._waiting, strict=True):
            places = sorted({step * (len(heap) - 1) // 16 for step in range(17)}) if heap else []
            in_order = sorted(heap)
            due = [(place, in_order[place][0] - self._now_s) for place in places]
            own = [] if lane is Lane.LOW else due
            yield LaneView(lane, len(heap), len(heap), 0, 0, None, None, deadlines=own, staged=len(heap))


@cache
def outcomes() -> dict[str, Outcome]:
    """The whole day under each trigger."""
    return {by: Simulation(rendered(by), day()).run() for by in TRIGGERS}


def table(found: Mapping[str, Outcome]) -> str:
    """The outcomes side by side."""
    rows: dict[str, Callable[[Outcome], str]] = {
        "late requests": lambda each: f"{each.late}",
        "of these, came while no worker was ready": lambda each: f"{each.late_of_cold}",
        "worker hours": lambda each: f"{each.worker_s / 3600:.1f}",
        "most workers": lambda each: f"{each.most}",
        "from 0 to 1, and back to 0": lambda each: f"{each.wakes}, {each.sleeps}",
        "handed back at scale-in": lambda each: f"{each.handed_back}",
        "never answered": lambda each: f"{each.unanswered}",
    }
    lines = [f"| {found[TRIGGERS[0]].requests:,} requests |" + "".join(f" `{by}` |" for by in found), "|---|---:|---:|"]
    return "\n".join(
        [*lines, *(f"| {what} | " + " | ".join(map(shown, found.values())) + " |" for what, shown in rows.items())]
    )


def fresh(page: str) -> str:
    """The page with today's table."""
    return refilled(page, "k8s", {"day": lambda: table(outcomes())})


if __name__ == "__main__":
    PAGE.write_text(fresh(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

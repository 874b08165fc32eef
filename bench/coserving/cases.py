"""Cases and contenders of this measurement, and their sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from streamfleet.worker.engine.simulated_profile import SMOLLM2_135M_CPU as PROFILE

PATIENT_LANE, URGENT_LANE = "low", "critical"
PATIENT_TOKENS, URGENT_TOKENS = 512, 32
SPREAD = tuple(range(256, 769, 32))
"""Lengths of answers that end one by one: where all end together, what comes in that moment waits for their results."""
SHORT = tuple(range(32, 97, 4))
"""Lengths of answers of which one ends with about each step: the time until the next end tells nothing by chance."""
SLOTS = PROFILE.slots
"""Of one engine without its reserve; vLLM gets as many."""
PATIENT_QUEUE, URGENT_QUEUE = "default", "urgent"
"""The second one is only there where the fleet is split."""
KV_VARIABLE = "BENCH_COSERVING_KV_TOKENS"
LANE_VARIABLE = "BENCH_COSERVING_PATIENT_LANE"
GUARANTEED = 5.0
"""Per cent of the picks that the patient lane has by default."""

ALONE, ORDER, EIGHTH, HALF, ONLY_LOW, RESERVE = (
    "urgent alone",
    "order alone",
    "split, an eighth urgent",
    "split, half urgent",
    "only low gives way",
    "reserve",
)
ORDER_SETTINGS: Mapping[str, object] = {"STREAMFLEET_RESERVE_PERCENT": 0, "STREAMFLEET_PATIENT_LANES": "none"}


@dataclass(frozen=True)
class Contender:
    """One way to run both kinds of work.

    Attributes:
        patient: true if there is patient work.
        reserve: true for workers with their usual settings; otherwise they have the order alone.
        urgent_share: share of the fleet that serves urgent requests only; 0 for a fleet that is not split.
        only_low: true if `normal` leaves no reserve and gives no way.
    """

    patient: bool = True
    reserve: bool = False
    urgent_share: float = 0.0
    only_low: bool = False

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings of the workers."""
        if self.only_low:
            return {"STREAMFLEET_PATIENT_LANES": "low"}
        return {} if self.reserve else ORDER_SETTINGS


CONTENDERS: Mapping[str, Contender] = {
    ALONE: Contender(patient=False, reserve=True),
    ORDER: Contender(),
    EIGHTH: Contender(urgent_share=1 / 8),
    HALF: Contender(urgent_share=1 / 2),
    ONLY_LOW: Contender(reserve=True, only_low=True),
    RESERVE: Contender(reserve=True),
}


@dataclass(frozen=True)
class Case:
    """One load on one fleet.

    Attributes:
        workers: number of workers, with an engine each.
        load: urgent work as a share of what the engines can do without their reserve.
        speed: factor over the simulated engine's own speed; 0 for real vLLM.
        seconds: length of the urgent traffic.
        patient_s: time for which patient work runs before the first urgent request.
        grace_s: most time that the last urgent requests have; their times count as if they got their first tokens then.
        contenders: names in `CONTENDERS`.
        kv_tokens: KV cache of the simulated engine; 0 for the profile's own, which holds far more than its slots need.
        rounds: number of times that all contenders run.
        judges_first_token: true if the first token's time is judged here; of more than the engines can do, it is not.
        running: lane of the patient work.
        comes: lane of the urgent requests.
        every_s: seconds from one of them to the next; 0 for random times, infinite for none.
        left_percent: least patient work, of what urgent work leaves.
        patient_tokens: lengths of the patient answers, by turns.
    """

    workers: int
    load: float
    speed: float
    seconds: float
    patient_s: float = 3.0
    grace_s: float = 12.0
    contenders: Sequence[str] = (ALONE, ORDER, EIGHTH, HALF, RESERVE)
    kv_tokens: int = 0
    rounds: int = 1
    judges_first_token: bool = True
    running: str = PATIENT_LANE
    comes: str = URGENT_LANE
    every_s: float = 0.0
    left_percent: float = 95.0
    patient_tokens: Sequence[int] = (PATIENT_TOKENS,)

    @property
    def name(self) -> str:
        engine = f"{self.workers} worker{'s' if self.workers > 1 else ''}" if self.speed else "vLLM"
        after = f", after {self.patient_s:g} s without" if self.patient_s > LONG_S else ""
        short = ", KV cache full" if self.kv_tokens else ""
        if self.every_s == math.inf:
            return f"{engine}, {self.running} alone"
        if self.every_s:
            running = f"short {self.running}" if self.patient_tokens == SHORT else self.running
            return f"{engine}, full of {running}, one {self.comes} each {self.every_s:g} s{after}"
        return f"{engine}, {self.load:.0%} urgent{after}{short}"

    @property
    def tokens_per_s(self) -> float:
        """Output tokens that the fleet writes in a second with all slots but the reserve taken, by the profile."""
        return self.workers * self.speed * SLOTS / PROFILE.step_s(SLOTS)


LONG_S = 60.0
"""After so long without urgent work, patient lanes may borrow the reserve."""
NORMAL = Case(
    1, 0.0, 4, LONG_S + 10, LONG_S + 10, contenders=(ALONE, ONLY_LOW, RESERVE), running="normal", every_s=10.0
)
BEHIND_LOW = replace(
    NORMAL, contenders=(ONLY_LOW, RESERVE), running="low", comes="normal", every_s=2.0, patient_tokens=SPREAD
)
LENT = replace(BEHIND_LOW, seconds=21.0, patient_tokens=SHORT)

GROUPS: Mapping[str, Sequence[Case]] = {
    "1": (Case(1, 0.1, 4, 20, rounds=2), Case(1, 0.5, 4, 12, rounds=2)),
    "2": (
        Case(2, 0.1, 3, 20, contenders=(ALONE, ORDER, EIGHTH, RESERVE)),
        Case(2, 0.5, 3, 15, contenders=(ALONE, ORDER, HALF, RESERVE)),
    ),
    "8": (
        Case(8, 0.1, 1, 25, contenders=(ALONE, ORDER, EIGHTH, RESERVE)),
        Case(8, 0.5, 1, 25, contenders=(ALONE, ORDER, HALF, RESERVE)),
    ),
    "borrowed": (Case(1, 0.1, 4, 20, patient_s=LONG_S + 10, contenders=(ALONE, ORDER, RESERVE)),),
    "normal": (
        NORMAL,
        replace(NORMAL, patient_s=3.0, every_s=math.inf, contenders=(ONLY_LOW, RESERVE), left_percent=98.0),
    ),
    "behind-low": (replace(BEHIND_LOW, patient_s=3.0, rounds=2), replace(LENT, rounds=4)),
    "kv": (Case(1, 0.1, 4, 20, contenders=(ALONE, ORDER, RESERVE), kv_tokens=16_900),),
    "overload": (Case(1, 1.5, 4, 20, contenders=(ORDER, RESERVE), judges_first_token=False),),
    "vllm": (Case(1, 0.1, 0, 40, patient_s=15.0, contenders=(ALONE, ORDER, HALF, ONLY_LOW, RESERVE)),),
    "vllm-normal": (
        replace(NORMAL, speed=0.0),
        replace(BEHIND_LOW, speed=0.0, patient_s=15.0),
        replace(LENT, speed=0.0),
    ),
}
"""By the names that the command line knows."""
USUAL = tuple(name for name in GROUPS if not name.startswith("vllm"))


TINY = Case(1, 0.5, 8, 1.5, patient_s=0.5, grace_s=1.5, contenders=(ALONE, ORDER, HALF, RESERVE))


def chosen(quick: bool, groups: Sequence[str] = USUAL, rounds: int | None = None) -> list[Case]:
    """Returns the cases of some of `GROUPS`; small ones have one round of a few seconds."""
    cases = [case for name in groups for case in GROUPS[name]]
    if quick:
        short = [case for case in cases if case.patient_s <= LONG_S]
        cases = [replace(case, seconds=min(case.seconds, 6.0), rounds=1) for case in short]
    return [replace(case, rounds=rounds or case.rounds) for case in cases]

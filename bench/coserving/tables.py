"""Tables, targets and verdicts of the report, made from the figures of its cases. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.core.reports import Report, Table, Target
from bench.core.tables import shown
from bench.coserving.cases import ALONE, GUARANTEED, LONG_S, ONLY_LOW, ORDER, RESERVE
from bench.coserving.traffic import WAYS

Figures = Mapping[str, Any]
BEYOND_MS = 10.0
AGAINST = {ALONE: "alone", ONLY_LOW: "with only low giving way"}
FIRST_ONE = "of the first one of each round, ms"
"""It finds the reserve lent."""
LEFT_PERCENT, REPEATED_PERCENT, INTERRUPTIONS = 95.0, 2.0, 3.0
SHARE_OFF = 0.5
"""Points: so much a few picks more or fewer at the ends of the traffic make."""


def judge(report: Report) -> None:
    """Write tables and targets from `report.data["cases"]`."""
    report.tables, report.targets = [], []
    for name, case in report.data["cases"].items():
        made = case.get("made", report.made)
        report.tables.append(_table(name if made == report.made else f"{name}, {made}", case))
        report.targets += _targets(name, case)


def verdicts(report: Report) -> Iterator[tuple[bool, str]]:
    """Each claim, with true if it is kept, and both its numbers."""
    for target in report.targets:
        value = "not measured" if target.value is None else f"{shown(target.value)} {target.unit}".strip()
        note = f" ({target.note})" if target.note else ""
        yield target.holds, f"{target.name}: {value}, {target.kind} {shown(target.limit)} {target.unit}{note}"


def left_percent(contenders: Mapping[str, Figures], name: str = RESERVE) -> float | None:
    """Patient tokens a second, in per cent of what urgent work leaves; None without the fleet that it is held against.

    What the engines can do is what they wrote with the order alone, all lanes together: there no slot is ever free; or
    where only `low` gives way.
    """
    against = contenders.get(ORDER) or contenders.get(ONLY_LOW)
    if against is None or name == ALONE:
        return None
    full = sum(against[figure] for figure in ("patient_per_s", "urgent_per_s"))
    left = full - contenders[name]["urgent_per_s"]
    return float(100 * contenders[name]["patient_per_s"] / left) if left > 0 else None


def _table(name: str, case: Mapping[str, Any]) -> Table:
    contenders = case["contenders"]
    was_lent = case.get("patient_s", 0) > LONG_S and all("very_first_ms" in found for found in contenders.values())
    rows = []
    for contender, found in contenders.items():
        late = "≥ " if found["unanswered"] else ""
        rows.append(
            {
                "": contender,
                **{f"first token, {way}, p50 / p99 ms": _pair(found, way, late) for way in WAYS},
                **({FIRST_ONE: " / ".join(map(shown, found["very_first_ms"]))} if was_lent else {}),
                "no answer": found["unanswered"],
                "step p50 / p99 ms": _pair(found, "step"),
                "urgent tokens/s": found["urgent_per_s"],
                "patient tokens/s": found["patient_per_s"],
                "of what is left, %": left_percent(contenders, contender),
                "interrupted": found["interrupted"],
                "one at most": found["most_interrupted"],
                "written twice, %": found["repeated_percent"],
                "picks of low, %": found["patient_picks_percent"] if contender != ALONE else None,
            }
        )
    requests = contenders[RESERVE]["requests"]
    return Table(f"Co-serving, {name}: {requests} urgent requests", list(rows[0]), rows)


def _pair(found: Figures, name: str, before: str = "") -> str:
    p50, p99 = found[f"{name}_p50_ms"], found[f"{name}_p99_ms"]
    return "" if p50 is None else f"{shown(p50)} / {before}{shown(p99)}"


def _targets(name: str, case: Mapping[str, Any]) -> Iterator[Target]:
    contenders, found = case["contenders"], case["contenders"][RESERVE]
    if not case["judges_first_token"]:
        share, wanted = found["patient_picks_percent"], GUARANTEED - SHARE_OFF
        note = f"of {found['picks']:.0f} picks; guaranteed: {GUARANTEED:g} %"
        yield Target(f"{name}: picks of low", share, wanted, "at least", "%", note)
    for against in AGAINST if case["judges_first_token"] and found["requests"] else ():
        if against in contenders:
            title = f"{name}: first token, beyond {AGAINST[against]} and two steps"
            yield _first_token(title, contenders[against], found)
    if case["judges_first_token"]:
        note = f"{shown(found['patient_per_s'])} tokens/s"
        least = case.get("left_percent", LEFT_PERCENT)
        yield Target(f"{name}: patient work, of what is left", left_percent(contenders), least, "at least", "%", note)
    yield Target(f"{name}: tokens written twice", found["repeated_percent"], REPEATED_PERCENT, "at most", "%")
    yield Target(f"{name}: interruptions of one request", found["most_interrupted"], INTERRUPTIONS, "at most", "")


def _first_token(title: str, alone: Figures, found: Figures) -> Target:
    """The worst of p50 and p99, by client and by XADD, against the same alone and two steps."""
    worst: tuple[float, str] | None = None
    for way in WAYS:
        for share in ("p50", "p99"):
            figure = f"{way}_{share}_ms"
            if found[figure] is None or alone[figure] is None or found["step_p99_ms"] is None:
                continue
            bound = alone[figure] + 2 * found["step_p99_ms"]
            note = (
                f"{share} by {way} {shown(found[figure])} ms; against {shown(alone[figure])} ms, "
                f"two steps {shown(2 * found['step_p99_ms'])} ms"
            )
            if found["unanswered"]:
                note += f"; {found['unanswered']} without an answer"
            worst = max(worst or (float("-inf"), ""), (found[figure] - bound, note))
    value, note = worst or (None, "")
    return Target(title, value, BEYOND_MS, "at most", "ms", note)

"""Results of a run, in words and figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from tests.hostile.run import GOOD, Ended


def percentile(values: Iterable[int], share: float) -> int:
    """The smallest value that so large a share of them does not exceed; 0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0


def latencies(ended: Mapping[str, Ended | None]) -> list[int]:
    """Of the good ones that succeeded, in ms."""
    return [end.ms for end in ended.values() if end and end.family == GOOD and end.status == "succeeded"]


def table(ended: Mapping[str, Ended | None]) -> Iterator[str]:
    """One line for each family: how many ended how, and how long they took."""
    families: dict[str, list[Ended]] = {}
    for end in ended.values():
        if end:
            families.setdefault(end.family, []).append(end)
    yield f"{'family':26} {'n':>4} {'p50 ms':>7} {'max ms':>7}  ended as"
    for family in sorted(families):
        ends = families[family]
        kinds = Counter(f"{end.status} {end.http_status} {end.code}".rstrip() for end in ends)
        shown = ", ".join(f"{kind} x{count}" for kind, count in kinds.most_common())
        took = [end.ms for end in ends]
        yield f"{family:26} {len(ends):4} {percentile(took, 0.5):7} {max(took):7}  {shown}"
    if missing := [identity for identity, end in ended.items() if end is None]:
        yield f"WITHOUT AN END: {', '.join(missing[:20])}"


def figures(name: str, ended: Mapping[str, Ended | None]) -> str:
    """The good ones' latencies in one line."""
    took = latencies(ended)
    shares = " ".join(f"p{round(share * 100)}={percentile(took, share)}ms" for share in (0.5, 0.9, 0.99, 1.0))
    good = sum(end is not None and end.family == GOOD for end in ended.values())
    return f"{name}: good={good} succeeded={len(took)} {shares}"

"""Arithmetic of regular expressions: properties of a part, and of several parts put together.

Uses only the structure; nothing is matched or expanded. Estimates err on the high side.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

ENDLESS = 16
"""Rounds for which a repeat without an upper end counts, where each round may read in several ways."""
MOST = 10**9
ASCII = (1 << 128) - 1
OTHERS = 1 << 128
"""Every character beyond ASCII, as one."""
# Measured CPU milliseconds to compile: a plain character, a class, a class of many characters; and for each round of a
# counted repeat of a class, which is expanded up to about `_WRITTEN_OUT` rounds.
_LITERAL_MS, _CLASS_MS, _WIDE_MS = 0.01, 1.0, 5.0
_WIDE = 64
_WRITTEN_OUT = 190
_ENDING_MS = 2.0  # each round that may be the last one costs about twice
_LEAD = 32


def mask_of(chars: str) -> int:
    """A set of characters as bits."""
    mask = 0
    for char in chars:
        mask |= 1 << min(ord(char), 128)
    return mask


@dataclass(frozen=True, slots=True)
class Part:
    """Properties of a part of a pattern. Sets of characters are bit masks.

    Attributes:
        least, most: number of characters that it matches; ``most`` is `MOST` if there is no end.
        size: number of characters after repeats are expanded.
        ways: number of places in it that one text can have reached, if it is entered at one place of the text only.
        first, last, chars: characters that it may begin with, end with, and contain.
        onward: characters that may continue it where it might have ended.
        lead: its first characters, as far as they are the same on every way through it.
        exact: true if its end in the text is known as soon as the next character is known.
        compile_ms: approximate CPU time to compile it.
        one_class: true if it is a single class of characters.
        rounds: the largest number of a repeat in it.
    """

    least: int = 0
    most: int = 0
    size: int = 0
    ways: int = 1
    first: int = 0
    last: int = 0
    chars: int = 0
    onward: int = 0
    lead: tuple[int, ...] = ()
    exact: bool = True
    compile_ms: float = 0.0
    one_class: bool = False
    rounds: int = 0


def plain(char: str) -> Part:
    """One character that stands for itself."""
    return _character(mask_of(char), _LITERAL_MS)


def one_of(mask: int) -> Part:
    """One character out of a class."""
    wide = mask & OTHERS or mask.bit_count() > _WIDE
    return replace(_character(mask, _WIDE_MS if wide else _CLASS_MS), one_class=True)


def _character(mask: int, compile_ms: float) -> Part:
    return Part(1, 1, 1, 1, mask, mask, mask, 0, (mask,), compile_ms=compile_ms)


def joined(a: Part, b: Part) -> Part:
    """Parts in sequence: `a`, then `b`."""
    apart = not a.onward & b.first and not (a.least == 0 and a.first & b.first)
    exact = a.exact and b.exact and apart
    if exact or a.least == a.most or (a.exact and apart):  # `b` is entered once
        ways = max(a.ways, b.ways)
    elif not a.last & b.chars:  # `b`, entered anew, has just failed on the character that ended `a`
        ways = a.ways + b.ways
    else:
        ways = a.ways + b.size
    return Part(
        least=min(MOST, a.least + b.least),
        most=min(MOST, a.most + b.most),
        size=min(MOST, a.size + b.size),
        ways=min(MOST, ways),
        first=a.first | (b.first if a.least == 0 else 0),
        last=b.last | (a.last if b.least == 0 else 0),
        chars=a.chars | b.chars,
        onward=b.onward | (a.onward | b.first if b.least == 0 else 0),
        lead=(*a.lead, *b.lead)[:_LEAD] if len(a.lead) == a.least == a.most else a.lead,
        exact=exact,
        compile_ms=a.compile_ms + b.compile_ms,
        rounds=max(a.rounds, b.rounds),
    )


def one_of_these(parts: Sequence[Part]) -> Part:
    """Alternatives: one of several parts."""
    exact, ways = _told_apart(parts, 0)
    return Part(
        least=min(part.least for part in parts),
        most=max(part.most for part in parts),
        size=min(MOST, sum(part.size for part in parts)),
        ways=min(MOST, ways),
        first=_union(part.first for part in parts),
        last=_union(part.last for part in parts),
        chars=_union(part.chars for part in parts),
        onward=_union(part.onward for part in parts),
        lead=tuple(_union(masks) for masks in zip(*(part.lead for part in parts), strict=False)),
        exact=exact,
        compile_ms=sum(part.compile_ms for part in parts),
        rounds=max(part.rounds for part in parts),
    )


def _told_apart(parts: Sequence[Part], at: int) -> tuple[bool, int]:
    """`exact` and `ways` of alternatives, told apart by their first characters from the one at ``at`` on."""
    if len(parts) == 1:
        return parts[0].exact, parts[0].ways
    blurred = False, sum(part.ways for part in parts)
    if at and any(len(part.lead) <= at for part in parts):
        return blurred
    exact, ways = True, 1
    for mask, alike in _overlapping(parts, at):
        if len(alike) == 1:
            one_exact, one_ways = alike[0].exact, alike[0].ways
        else:
            one_exact, one_ways = _told_apart(alike, at + 1)
            if mask.bit_count() > 1:  # read side by side; words that begin with the same letter are read as one
                one_ways = sum(part.ways for part in alike)
        exact, ways = exact and one_exact, max(ways, one_ways)
    return exact, ways


def _overlapping(parts: Sequence[Part], at: int) -> list[tuple[int, list[Part]]]:
    """Groups of parts that share no character at ``at``; each group with its characters there."""
    by_mask: dict[int, list[Part]] = {}
    for part in parts:
        by_mask.setdefault(part.lead[at] if at else part.first, []).append(part)
    groups: list[tuple[int, list[Part]]] = []
    for mask, alike in by_mask.items():
        touched = [group for group in groups if group[0] & mask]
        groups = [group for group in groups if not group[0] & mask]
        merged = [part for group in touched for part in group[1]] + alike
        groups.append((_union(group[0] for group in touched) | mask, merged))
    return groups


def _union(masks: Iterable[int]) -> int:
    return functools.reduce(operator.or_, masks, 0)


def repeated(part: Part, least: int, most: int | None) -> Part:
    """A part repeated ``least`` to ``most`` times; None for no end."""
    if most == 0 or part.size == 0:
        return Part()
    again = most is None or most > 1
    apart = part.least > 0 and not part.onward & part.first
    exact = part.exact and (not again or apart)
    once = exact or not again or part.least == part.most
    rounds = max(1, least) if most is None else most
    blurred = part.size * (max(ENDLESS, least) if most is None else most)
    return Part(
        least=min(MOST, part.least * least),
        most=MOST if most is None else min(MOST, part.most * most),
        size=min(MOST, part.size * rounds),
        ways=part.ways if once else min(MOST, max(part.ways, blurred)),
        first=part.first,
        last=part.last,
        chars=part.chars,
        onward=part.onward | (part.first if again and least != most else 0),
        lead=part.lead if least > 0 else (),
        exact=exact,
        compile_ms=_repeated_ms(part, least, most),
        rounds=max(part.rounds, least, most or 0),
    )


def _repeated_ms(part: Part, least: int, most: int | None) -> float:
    rounds = least if most is None else most
    if not part.one_class or rounds <= 1:
        return part.compile_ms
    return part.compile_ms * min(rounds, _WRITTEN_OUT) * (1.0 if least == most or most is None else _ENDING_MS)

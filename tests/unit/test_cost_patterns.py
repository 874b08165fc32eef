"""Bounds of regular expressions: against a model that writes them out and walks them, and on ones known to hurt."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfleet.worker.cost.patterns import Empty, Unreadable, weigh

LETTERS = "abc"


@dataclass(frozen=True)
class Written:
    """A pattern written out: its text, and its places with what may follow each."""

    text: str
    places: tuple[str, ...]  # each the letters that it stands for
    first: frozenset[int]
    last: frozenset[int]
    follow: frozenset[tuple[int, int]]
    nullable: bool


def letter(chars: str) -> Written:
    text = chars if len(chars) == 1 else f"[{chars}]"
    return Written(text, (chars,), frozenset({0}), frozenset({0}), frozenset(), nullable=False)


def then(a: Written, b: Written) -> Written:
    n = len(a.places)
    moved_first, moved_last = (frozenset(i + n for i in places) for places in (b.first, b.last))
    follow = a.follow | {(x + n, y + n) for x, y in b.follow} | {(x, y) for x in a.last for y in moved_first}
    return Written(
        f"(?:{a.text})(?:{b.text})",
        a.places + b.places,
        a.first | (moved_first if a.nullable else frozenset()),
        moved_last | (a.last if b.nullable else frozenset()),
        frozenset(follow),
        a.nullable and b.nullable,
    )


def either(a: Written, b: Written) -> Written:
    if len(begins := {a.places[i] for i in a.first} | {b.places[i] for i in b.first}) == 1 and len(*begins) == 1:
        return then(a, b)  # words that begin with the same letter are walked as one, which places cannot show
    n = len(a.places)
    return Written(
        f"(?:{a.text}|{b.text})",
        a.places + b.places,
        a.first | {i + n for i in b.first},
        a.last | {i + n for i in b.last},
        a.follow | {(x + n, y + n) for x, y in b.follow},
        a.nullable or b.nullable,
    )


def times(a: Written, least: int, more: int) -> Written:
    """``least`` to ``least + more`` times."""
    whole: Written | None = None
    for number in reversed(range(least + more)):  # a{1,3} is a(a(a)?)?
        whole = a if whole is None else then(a, whole)
        if number >= least:
            whole = replace(whole, nullable=True)
    assert whole is not None
    text = f"(?:{a.text}){{{least},{least + more}}}"
    return Written(text, whole.places, whole.first, whole.last, whole.follow, whole.nullable)


def endless(a: Written) -> Written:
    follow = a.follow | {(x, y) for x in a.last for y in a.first}
    return Written(f"(?:{a.text})*", a.places, a.first, a.last, frozenset(follow), nullable=True)


def walked(pattern: Written, length: int) -> int:
    """Most places at which one may be at once, over all texts up to a length."""
    most, reached = 1, {pattern.first}
    for _ in range(length):
        states = set()
        for candidates in reached:
            for char in LETTERS:
                at = frozenset(i for i in candidates if char in pattern.places[i])
                most = max(most, len(at))
                states.add(frozenset(y for x, y in pattern.follow if x in at))
        reached = states - {frozenset()}
    return most


letters = st.sampled_from(["a", "b", "c", "ab", "bc", "abc"]).map(letter)
patterns = st.recursive(
    letters,
    lambda inner: st.one_of(
        st.builds(then, inner, inner),
        st.builds(either, inner, inner),
        st.builds(times, inner, st.integers(1, 2), st.integers(0, 2)),
        st.builds(times, inner, st.just(0), st.integers(1, 3)),
        st.builds(endless, inner),
    ),
    max_leaves=5,
).filter(lambda pattern: len(pattern.places) <= 40)


@given(patterns)
def test_no_text_is_read_in_more_ways_than_the_bound_says(pattern: Written) -> None:
    re.compile(pattern.text)
    cost = weigh(pattern.text)
    assert cost.size >= len(pattern.places)
    assert cost.ways >= walked(pattern, 6)


@pytest.mark.parametrize(
    ("pattern", "ways", "size"),
    [
        ("(.?){5000}x", 5_001, 5_001),
        (".{0,900}.{0,900}x", 902, 1_801),
        ("(.{1,5}){10}", 50, 50),
        ("(.|..){5}", 15, 15),
        ("(..?)*x", 33, 3),
        ("((a?){8}b){1000}", 9_000, 9_000),
        ("a?" * 30, 30, 30),
        ("a{,5}{3}", 15, 15),
        ("(a*){50}?", 50, 50),
    ],
)
def test_what_hurt_an_engine_is_seen(pattern: str, ways: int, size: int) -> None:
    cost = weigh(pattern)
    assert (cost.ways, cost.size) == (ways, size)


def test_compiling_takes_time_in_the_square_of_the_size() -> None:
    assert weigh("(ab){250}").compile_ms < 50
    assert weigh("(ab){2500}").compile_ms > 3_000


@pytest.mark.parametrize(
    "pattern",
    [
        r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z",
        r"\d{1,3}(\.\d{1,3}){3}",
        r'"([^"\\]|\\["\\bfnrt/]|\\u[0-9a-fA-F]{4})*"',
        r"([A-Z][a-z]+( [a-z]+){0,30}\. ?){1,9}",
        r"(apple|apricot|banana|banal)",
        r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
        r"^[^<>]{1,100}$",
        r"(?P<year>\d{4})-(?<month>\d\d)",
        r"(?:Thought: [^\n]+\nAction: [a-z]+\n){1,5}Answer: [^\n]+",
        r"[]x]{2}[^]]\x41\u0041\u{1F600}\p{L}\.",
        r"{a}{,}x{2",
        "",
    ],
)
def test_common_patterns_are_read_in_one_way(pattern: str) -> None:
    assert weigh(pattern).ways == 1


def test_an_address_is_read_in_few_ways() -> None:
    assert weigh(r"[\w.%+-]{1,64}@([a-zA-Z0-9-]{1,63}\.){1,8}[a-zA-Z]{2,63}").ways == 2


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(?=a)b", "looks around"),
        ("(?<!a)b", "looks around"),
        ("(?<!a>)b", "looks around"),
        ("(?<=a>)b", "looks around"),
        ("\\p{L", "without its '}'"),
        ("(?i)b", "sets flags"),
        (r"(a)\1", r"uses \\1"),
        ("a)", "without its '\\('"),
        ("(a", "without its '\\)'"),
        ("[a", "ends too early"),
        ("a\\", "ends too early"),
        ("\\u00", "without its digits"),
        ("\\u{110000}", "beyond the last character"),
        ("(" * 60 + ")" * 60, "nests more than 50"),
    ],
)
def test_what_cannot_be_judged_says_why(pattern: str, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        weigh(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            r"[^\s\S]",
            r"[^\w\W]",
            r"[^\d\D]",
            r"a[^\s\S]",
            r"[^\s\S]a",
            r"(a|)[^\S\s]{3}",
            r"(a|b[^\s\S])",
            r"^[^\s\S]$",
        ),
        *(r"[^\d\W_a-zA-Z]", r"[^\x00-\x7f\w\W]", r"[^\w\x00-\u{10ffff}]", r"[^\u0000-\u{10FFFF}]", r"[^\s\S\p{L}]"),
        *(r"[^\S-\s]", r"[^\s-\S]", r"[^\x00-\x7f\u{8000}-\u{10ffff}\u{1000}-\u{7fff}\u{80}-\u{fff}]"),
        *(
            r"[^\x00-\u00e8é-\u{10ffff}]",
            r"[^é-\u{10ffff}\x00-\u00e8]",
            "[^\\x00-\U0010ffff]",
            "[^\x00-é\u00ea-\U0010ffff]",
        ),
        *(r"[b-a]", r"x[9-0z-a]"),
    ],
)
def test_a_class_of_no_character_is_seen(pattern: str) -> None:
    with pytest.raises(Empty, match="class of no character"):
        weigh(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            r"[\s\S]",
            r"[^\S ]",
            r"[^\s]",
            r"[^\S]",
            r"[^\W]",
            r"[\W\w]*",
            r"[^\x00-\x7f]",
            r"[^\x00-\uffff]",
            r"[^é]",
            r"[é]",
        ),
        *(
            r"[^\x00-\u{10fffe}]",
            r"[^\x00-èê-\u{10ffff}]",
            r"[^\x01-\u{10ffff}]",
            r"[^\x00-\x7f\p{L}]",
            r"[b-ax]",
            r"[^b-a]",
        ),
        *(r"[\d--9]", "[^\x00-\x7f中]", r"[\u{10ffff}]", r"[^\x00-\x7f\d]", r"[a-\d]", r"[\w-!]"),
    ],
)
def test_other_classes_have_some(pattern: str) -> None:
    assert weigh(pattern).size == 1


@given(st.text(alphabet="ab.*+?{}[](),|\\^$-019xu<>P:", max_size=60))
def test_any_text_is_judged(text: str) -> None:
    with contextlib.suppress(Unreadable, Empty):
        assert weigh(text).ways >= 1


@pytest.mark.parametrize(
    "piece", ["a", "[a-z]", "(a|b)", "a{1,2}", "|", "a?", "{", "a{", "[a-", "(?P<", "\\x41", "word1|", "[ab]|[bc]|"]
)
def test_time_grows_with_length_only(piece: str) -> None:
    def took(length: int) -> float:
        text = (piece * length)[:length]
        begin = time.process_time()
        with contextlib.suppress(Unreadable):
            weigh(text)
        return time.process_time() - begin

    # 16 times for 16 times the length; were it by its square, 256 times
    assert any(took(32_000) < max(0.05, took(2_000) * 16 * 8) for _ in range(3))

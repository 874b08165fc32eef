"""JSON text is exactly what json itself writes, whichever encoder wrote it."""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from collections.abc import Callable
from json import encoder as json_encoder
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamfleet.common import jsontext

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "é"]) | st.text(), "content": st.text() | values}),
    max_size=4,
)
bodies = st.dictionaries(
    st.text() | st.sampled_from(["messages", "prompt", "a", "a b"]) | st.integers() | st.none(),
    values | messages | st.text(),
    max_size=6,
)
ODD = ['\x7f \u2028 é 🚀 " \\ / \b\f\n\r\t \x00', 1e16, 1e-07, -0.0, 10**30, {"b": 1, "a": {"d": [], "c": {}}}]


@given(values)
@example(ODD)
def test_both_forms_are_what_json_writes(value: Any) -> None:
    assert jsontext.compact(value) == json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    assert jsontext.canonical(value) == json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert jsontext.parse(jsontext.compact(value)) == value
    assert jsontext.parse_compact(jsontext.compact(value)) == value


LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""Every character at which `str.splitlines` ends a line."""


@given(values)
@example(ODD)
@example({end: [f"a{end}b\\", end] for end in LINE_ENDS})
def test_a_record_is_one_line_for_every_reader(value: Any) -> None:
    for text in (jsontext.json_line(value), jsontext.single_line(json.dumps(value, ensure_ascii=False, indent=1))):
        assert text.splitlines() == [text]
        assert json.loads(text) == json.loads(json.dumps(value))


@pytest.mark.parametrize("text", ['{"a": "b"}', '{"a": "ü \U0001f680 \u2027 \u202a"}'])
def test_a_text_without_line_ends_stays_as_it_is(text: str) -> None:
    assert jsontext.single_line(text) is text


def both(body: Any) -> tuple[str, str]:
    """Returns the promises of `texts`, in json's own words."""
    sent = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return sent, json.dumps(json.loads(sent), sort_keys=True, separators=(",", ":"))


@given(bodies)
@example({"prompt": ODD[0], "b": ODD})
@example({"a b": 1, "a": 2, "a-": 3, "A": 4, "": 5})
@example({"é": 1, "z": "ü", "messages": [{"role": "é", "content": "🚀"}]})
@example({"messages": [{"role": "user", "content": "\x7f"}]})
@example({"logit_bias": {50256: -100, 9: 5, "9": 6}, "messages": ({"role": "user", "content": "hi"},)})
@example({1: 2, "1": 3, None: 4, 2.5: 5})
@example(
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"role": "tool", "content": None}]}
)
@example({"messages": [{"content": "hi", "role": "user"}, {"role": "user", "content": "hi", "name": "me"}]})
@example({})
def test_the_texts_of_a_body_are_what_json_writes_and_reads_and_writes(body: dict[Any, Any]) -> None:
    assert jsontext.texts(body) == both(body)


class Text(str):
    """As text, but not quite."""

    __slots__ = ()


@pytest.mark.parametrize(
    "body",
    [
        OrderedDict(prompt="hi", a=OrderedDict(c=1, b=2)),
        {Text("prompt"): Text("hi"), "messages": [{Text("role"): Text("user"), "content": Text("hi")}]},
        {"messages": [OrderedDict(role="user", content="hi")], "stop": ("a", "b"), "seed": True},
    ],
    ids=str,
)
def test_values_of_derived_types_are_written_as_what_they_are_derived_from(body: dict[Any, Any]) -> None:
    assert jsontext.texts(body) == both(body)


@pytest.mark.parametrize(
    "value",
    [float("nan"), {1, 2}, {"a": b"b"}, [float("inf")], {(1,): 2}, 10**5000],
    ids=["nan", "set", "bytes", "infinity", "key", "digits"],
)
def test_a_body_with_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        jsontext.texts({"prompt": value})


@given(values)
@example(ODD)
def test_without_json_in_c_they_are_the_same(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("json.encoder.c_make_encoder", None)
        slow = jsontext.encoder(ascii_only=True, sort_keys=True, allow_nan=True)
    assert slow(value) == jsontext.canonical(value)


def _kind(value: object) -> str:
    """A name that is the same in every process."""
    return "object" if type(value) is object else str(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object(), {"a": b"b"}, {(1,): 2}], ids=_kind)
def test_what_json_cannot_say_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        jsontext.compact(value)


@pytest.mark.parametrize("text", ["NaN", '{"a": -Infinity}', "", "{", '\ufeff{"a": 1}', "[1] 2"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        jsontext.parse(text)


@given(
    values | st.floats(),
    st.booleans(),
    st.integers(0, 99),
    st.binary(max_size=2) | st.text('0eE+-.,:[]{}"\\\\u \t', max_size=3),
)
@example("\ud800", True, 0, b"")
@example("", False, 1, b"\xed\xa0\x80")
@example("", False, 1, b"\xc0\x80")
@example(0, False, 0, b"-")
def test_any_text_is_read_as_json_reads_it(value: Any, ascii_only: bool, at: int, more: bytes | str) -> None:
    """Texts that are nearly JSON, too: whichever parser reads a body, its digest is the same."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    text = text[:at] + (more if isinstance(more, bytes) else more.encode()) + text[at:]

    def refuse(name: str) -> None:
        raise ValueError(name)

    expected: object = ValueError
    with contextlib.suppress(ValueError):
        expected = repr(json.loads(text.decode(), parse_constant=refuse))
    found: object = ValueError
    with contextlib.suppress(ValueError):
        found = repr(jsontext.parse(text))
    assert found == expected


@pytest.mark.parametrize("depth", [199, 201, 500])
def test_deep_nesting_is_read_as_far_as_python_can(depth: int) -> None:
    assert json.dumps(jsontext.parse("[" * depth + "]" * depth)) == "[" * depth + "]" * depth


def test_a_number_out_of_range_is_compared_as_it_always_was() -> None:
    value = jsontext.parse('{"a": 1e400}')
    assert jsontext.canonical(value) == json.dumps(value, sort_keys=True, separators=(",", ":")) == '{"a":Infinity}'


def test_a_circle_ends() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(RecursionError):
        jsontext.compact(circle)


@pytest.mark.parametrize("text", ["", "abc", "abcd", 'a"\\\n', "中文\U0001f600é", "\x7f\x00" * 9, "a" * 100])
def test_a_long_string_is_quoted_in_pieces_and_reads_the_same(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder's C part would hold up the event loop for all of an image at once."""
    bodies: list[dict[str, Any]] = [{"p": text}, {"x": [{"y": text}]}, {"m": [{"role": "u", "content": text}]}]
    expected = [
        (
            json.dumps(body, ensure_ascii=False, separators=(",", ":")),
            json.dumps(body, sort_keys=True, separators=(",", ":")),
        )
        for body in bodies
    ]
    lengths: list[int] = []

    def noting(quote: Callable[[str], str]) -> Callable[[str], str]:
        def noted(piece: str) -> str:
            lengths.append(len(piece))
            return quote(piece)

        return noted

    for name in ("encode_basestring", "encode_basestring_ascii"):
        monkeypatch.setattr(json_encoder, name, noting(getattr(json_encoder, name)))
    monkeypatch.setattr(jsontext, "_QUOTE_CHARS", 8)
    assert [jsontext.texts(body) for body in bodies] == expected
    assert max(lengths) <= 8

"""Fields for constraints that vLLM has removed reach it under their new names, at the same cost, or are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import CHAT, COMPLETIONS, EMBEDDINGS, ENDPOINTS, RESPONSES
from streamfleet.operator.fleet import MOST_BYTES, worker_views
from streamfleet.worker.cost.check import check_cost, for_engine, pack_fields
from streamfleet.worker.cost.limits import CostLimits

BODY: dict[str, Any] = {"messages": [], "prompt": "x", "input": "x"}
MOVED: dict[str, Any] = {
    "guided_json": {"type": "object"},
    "guided_regex": "[0-9]+",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'root ::= "a"',
}
GONE = (
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "guided_decoding_disable_fallback",
    "guided_what_comes_next",
)
ALLOWED = CostLimits(allow=("grammars",))


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES])
def test_it_comes_to_the_engine_under_its_new_name(name: str, endpoint: str) -> None:
    sent = for_engine({**BODY, name: MOVED[name], "response_format": {"type": "text"}}, endpoint, ALLOWED)
    assert sent["structured_outputs"] == {name.removeprefix("guided_"): MOVED[name]}
    assert name not in sent


@pytest.mark.parametrize("name", [*MOVED, *GONE])
@pytest.mark.parametrize("endpoint", sorted(ENDPOINTS))
def test_none_is_ever_passed_on_as_it_is(name: str, endpoint: str) -> None:
    body = {**BODY, name: MOVED.get(name, "x")}
    if name in MOVED and endpoint in (CHAT, COMPLETIONS, RESPONSES):
        assert name not in for_engine(body, endpoint, ALLOWED)
    else:
        with pytest.raises(InvalidRequest) as refused:
            for_engine(body, endpoint, ALLOWED)
        assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")
        assert "structured_outputs.json" in refused.value.message
    assert not {name, "structured_outputs"} & set(for_engine({**BODY, name: None}, endpoint, ALLOWED))


@pytest.mark.parametrize(
    "other", ["structured_outputs", "response_format", "guided_choice"], ids=["new", "format", "two of them"]
)
def test_beside_another_constraint_it_is_refused(other: str) -> None:
    """vLLM would take one of them."""
    with pytest.raises(InvalidRequest) as refused:
        for_engine({**BODY, "guided_regex": "a", other: {"type": "json_object"}}, CHAT, ALLOWED)
    assert refused.value.param in ("guided_regex", other)
    assert other in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guided_json", json.dumps({"pattern": "(.?){5000}x"})),
        ("guided_json", {"pattern": "(.?){5000}x"}),
        ("guided_regex", "(.?){5000}x"),
        ("guided_choice", [f"{number:0400}" for number in range(40)]),
        ("guided_grammar", "root ::= root"),
    ],
)
def test_its_cost_is_weighed_before_and_after(name: str, value: Any) -> None:
    body = {**BODY, name: value}
    for check in (check_cost, for_engine):
        with pytest.raises(InvalidRequest) as refused:
            check(body, limits=CostLimits(max_grammar_bytes=16_000), endpoint=CHAT)
        assert refused.value.code in ("too_expensive", "not_allowed")


def test_published_fields_come_back_and_wrong_ones_are_none() -> None:
    packed = pack_fields({CHAT: ["b", "a", "priority"], EMBEDDINGS: ["input"]})
    bomb = pack_fields({CHAT: ["x" * 10 * MOST_BYTES]})
    said = {"good": packed, "bomb": bomb, "text": "no", "number": 7, "list": ["a"]}
    views = worker_views({name: {"fields": fields} for name, fields in said.items()}, {}, 0)
    assert {view.name: view.fields for view in views if view.fields} == {
        "good": {CHAT: {"a", "b"}, EMBEDDINGS: {"input"}}
    }

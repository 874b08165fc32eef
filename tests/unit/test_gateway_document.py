"""The OpenAPI document: whole, and of every operation what it takes and answers."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streamfleet.gateway.app import build
from streamfleet.gateway.gateway import Gateway

OPEN = {"/livez", "/readyz", "/health"}


def made(*, keys_on: bool = True) -> dict[str, Any]:
    settings = SimpleNamespace(gateway_origins=[], gateway_ui="off")
    return build(cast("Gateway", SimpleNamespace(settings=settings, keys_on=keys_on))).openapi()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return made()


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, each) for path, methods in document["paths"].items() for method, each in methods.items()]


def test_every_name_that_it_refers_to_is_there(document: dict[str, Any]) -> None:
    names = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert names == set(document["components"]["schemas"])


def test_every_operation_says_what_it_answers(document: dict[str, Any]) -> None:
    for path, method, each in operations(document):
        answers = each["responses"].items()
        good = [answer for status, answer in answers if status.startswith("2") and status != "204"]
        assert len(good) == 1, (path, method)
        assert good[0]["content"], (path, method)
        assert each["summary"], (path, method)
        assert ("401" in each["responses"]) == (path not in OPEN), (path, method)
        assert (each.get("security") == []) == (path in OPEN), (path, method)
        assert "422" not in each["responses"], "FastAPI's own, which nobody gets"
        names = [(given["name"], given["in"]) for given in each.get("parameters", [])]
        assert len(set(names)) == len(names), (path, method)


def test_what_takes_a_body_says_which(document: dict[str, Any]) -> None:
    posts = {path for path, method, _ in operations(document) if method == "post" and not path.endswith("/cancel")}
    assert posts == {path for path, _, each in operations(document) if "requestBody" in each}


def test_where_keys_are_off_none_is_asked_for() -> None:
    assert "security" not in made(keys_on=False)
    assert made()["security"] == [{"key": []}]

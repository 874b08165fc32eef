"""The gateway answers any bytes with less than a 5xx, and lives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.gateway_process import Stage, stage_in

PATHS = st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    [
        *("model", "messages", "prompt", "input", "stream", "user", "service_tier", "max_tokens", "n", "temperature"),
        *("stop", "system", "tools", "tool_choice", "metadata", "thinking"),
    ]
)
LIKELY = st.sampled_from(
    ["simulated", [{"role": "user", "content": "hi"}], "hi", ["a", "b"], True, False, "flex", 3, 0, -1, 2, 10**30, ""]
)
OBJECTS = st.dictionaries(NAMES | st.text(max_size=8), LIKELY | VALUES, max_size=8)
BODIES = OBJECTS.map(lambda value: json.dumps(value).encode()) | VALUES.map(json.dumps).map(str.encode) | st.binary()
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "X-Streamfleet-Lane",
            "X-Streamfleet-On-Disconnect",
            "X-Streamfleet-Restarts",
            "X-Streamfleet-Program",
            "X-Stainless-Read-Timeout",
            "X-Stainless-Retry-Count",
            "Idempotency-Key",
            "Last-Event-ID",
            "traceparent",
            "Content-Type",
            "Accept-Encoding",
            "Origin",
            "X-Forwarded-For",
        ]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=60).map(str.strip)
    | st.sampled_from(["low", "event", "continue", "60", "nan", "1e9", "0-0/0", "1790000000000-0/1"]),
    max_size=5,
)
AT_ONCE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage_in(tmp_path_factory.mktemp("gateway"), speed=1_000.0) as stage:
        yield stage


@pytest.fixture(scope="module")
def http(stage: Stage) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {stage.key}"}
    with httpx.Client(base_url=stage.gateway.url, headers=headers, timeout=20, trust_env=False) as client:
        yield client


@AT_ONCE
@given(path=PATHS, body=BODIES, headers=HEADERS)
def test_any_body_and_headers(
    stage: Stage, http: httpx.Client, path: str, body: bytes, headers: dict[str, str]
) -> None:
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = http.post(path, content=body, headers=encoded)
    assert answer.status_code < 500, (answer.text, body, headers)
    if answer.status_code != 200:
        more = set() if path == "/v1/messages" else {"param", "code"}
        assert set(answer.json()["error"]) == {"message", "type"} | more
    assert stage.gateway.alive


@AT_ONCE
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "NONSENSE"]),
    path=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="?#"), max_size=60),
    inside=st.sampled_from(["/", "/v1/", "/v1/models/", "/v1/streams/", "/v1/chat/"]),
)
def test_any_method_and_path(stage: Stage, http: httpx.Client, method: str, path: str, inside: str) -> None:
    answer = http.request(method, httpx.URL(stage.gateway.url).copy_with(raw_path=f"{inside}{path}".encode()))
    assert answer.status_code < 500, (method, inside + path)


@AT_ONCE
@given(st.binary(max_size=300))
def test_any_bytes(stage: Stage, data: bytes) -> None:
    with stage.gateway.raw() as connection:
        connection.sendall(data + b"\r\n\r\n")
        connection.settimeout(0.02)
        try:
            answer = connection.recv(4_096)
        except (TimeoutError, ConnectionResetError):
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5"), answer
    assert stage.gateway.alive


def test_it_is_all_well_in_the_end(stage: Stage, http: httpx.Client) -> None:
    assert http.get("/readyz").status_code == 200
    assert "request_broke" not in stage.gateway.printed()

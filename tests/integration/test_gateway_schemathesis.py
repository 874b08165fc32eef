"""schemathesis plays the OpenAPI document: no answer is a 5xx, and each is one that the document has.

No handler computes for long without giving way, whatever it is sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies

from tests.integration.gateway_process import GatewayProcess, Stage, stage_in
from tests.integration.gateway_ticking import TickingGateway
from tests.waiting import eventually_blocking

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "6"))
"""For each operation; by hand ten times as many."""
MOST_MS, TRIES = 50.0, 3
"""Of a handler's CPU time without giving way; at one try, the machine may have been at fault."""
DEADLINES = ("X-Streamfleet-Ttl", "X-Streamfleet-Deadline-Ms")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("schemathesis")
    with stage_in(folder, 1_000.0, TickingGateway, gateway_files=(folder / "files").as_uri()) as stage:
        yield stage


@pytest.fixture(scope="module")
def known(stage: Stage) -> dict[str, str]:
    """Ids of things that there are, by the names of the document's parameters."""
    line = {"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {"input": "hi"}}
    prompts = {"prompts": ["hi"], "max_tokens": 4}
    with stage.gateway.http_blocking(stage.key) as http:
        file = http.post("/v1/files", data={"purpose": "batch"}, files={"file": json.dumps(line).encode()}).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "1h"}
        batch = http.post("/v1/batches", json=asked).json()
        job = http.post("/v1/batch/async", json=prompts).json()
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        request_id = http.post("/v1/chat/completions", json=chat).headers["x-streamfleet-id"]

        def ended() -> bool:
            return bool(http.get(f"/v1/batch/{job['id']}").json()["status"] == "completed")

        eventually_blocking(ended, 20, "the job has ended")
    ids = {"file_id": file["id"], "batch_id": batch["id"], "job_id": job["id"], "request_id": request_id}
    return {**ids, "model": "simulated"}


def checks() -> list[Any]:
    """Returns the checks of every answer; loaded here because that takes seconds."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as openapi

    return [
        not_a_server_error,
        openapi.status_code_conformance,
        openapi.content_type_conformance,
        openapi.response_schema_conformance,
        openapi.response_headers_conformance,
    ]


def broken(case: Any, known: dict[str, str], session: Any) -> str:
    """Returns the fault of the answer to a case; empty if it has none."""
    for name, value in known.items():
        if case.path_parameters and name in case.path_parameters:
            case.path_parameters[name] = value
    if known and isinstance(case.body, dict) and "input_file_id" in case.body:
        case.body["input_file_id"] = known["file_id"]
        case.body.pop("callback_url", None)  # no secret was made that it could be signed with
    answer = case.call(session=session)
    hurried = any(name in (case.headers or {}) for name in DEADLINES)
    if answer.status_code == 504 and hurried:
        return ""  # what was asked for
    try:
        case.validate_response(answer, checks=checks())
    except BaseExceptionGroup as failures:
        return "\n".join([case.as_curl_command(), answer.text[:400], *map(str, failures.exceptions)])
    return ""


def fault_of(operation: Any, known: dict[str, str], session: Any) -> str:
    """The first fault of an operation; empty where it has none."""
    found = ""

    @seed(6)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), real=strategies.booleans())
    def ask(case: Any, real: bool) -> None:
        nonlocal found
        found = found or broken(case, known if real else {}, session)

    ask()
    return found


def fault_in_time(operation: Any, known: dict[str, str], session: Any, gateway: GatewayProcess) -> str:
    """The first fault of an operation; that it holds up the event loop is one."""
    assert isinstance(gateway, TickingGateway)
    seen: list[float] = []
    for _ in range(TRIES):
        gateway.longest_ms()
        fault = fault_of(operation, known, session)
        seen.append(gateway.longest_ms())
        if fault or seen[-1] < MOST_MS:
            return fault
    times = ", ".join(f"{each:.0f}" for each in seen)
    return f"{operation.method.upper()} {operation.path}: computes for {times} ms without giving way"


@pytest.mark.timeout(600)
def test_no_operation_breaks_or_answers_what_the_document_has_not(stage: Stage, known: dict[str, str]) -> None:
    from schemathesis import openapi

    schema = openapi.from_url(f"{stage.gateway.url}/openapi.json")
    found: list[Any] = list(schema.get_all_operations())
    operations = [each.ok() for each in found]
    assert len(operations) > 20
    operations.sort(key=lambda each: each.method.upper() == "DELETE")  # what there is has to be there for the others
    with requests.Session() as session:
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {stage.key}"
        faults = [fault for each in operations if (fault := fault_in_time(each, known, session, stage.gateway))]
    assert not faults, "\n\n".join(faults)
    assert stage.gateway.alive
    assert not [event for event in stage.gateway.events("http_request") if event["status"] in (500, 503)]
    assert "request_broke" not in stage.gateway.printed()

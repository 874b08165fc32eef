"""The queue's configuration under ACL rules: those of the roles, and those that leave it out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamfleet.common.errors import NotPermitted
from streamfleet.common.keys import Keys
from streamfleet.operator.access_rules import Patterns, Role, grants
from streamfleet.producer.client import Client
from tests.integration.cli_processes import streamfleet
from tests.integration.worker_process import WorkerProcess
from tests.security.guarded import Guarded, rendered

QUEUE = "default"


def without_meta(guarded: Guarded, role: Role) -> str:
    """URL of a user with the role's rules, less those for the configuration."""
    found = grants(role, Patterns(Keys(QUEUE)))
    less = [grant for grant in found if not any(key.endswith(":meta") for key in grant.keys)]
    assert len(less) < len(found)
    return guarded.enlist_with(role, rendered(less))


async def test_a_producer_reads_and_a_worker_adds_and_only_an_operator_changes(guarded: Guarded) -> None:
    async with guarded.broker(guarded.enlist(Role.WORKER)) as worker:
        agreed = await worker.agree()
        with pytest.raises(NotPermitted):
            await worker.set_configuration({"lease_ms": "7000"})
    async with guarded.broker(guarded.enlist(Role.PRODUCER)) as producer:
        assert await producer.configuration() == agreed
        with pytest.raises(NotPermitted):
            await producer.agree()
    async with guarded.broker(guarded.enlist(Role.OPERATOR)) as operator:
        assert await operator.set_configuration({"lease_ms": "7000"}) == {**agreed, "lease_ms": "7000"}


async def test_a_worker_that_may_not_read_it_does_not_start(guarded: Guarded, tmp_path: Path) -> None:
    worker = WorkerProcess(without_meta(guarded, Role.WORKER), tmp_path, "w1")
    try:
        assert await worker.ended(30) == 2
        (line,) = [line for line in worker.printed().splitlines() if "lacks a permission" in line]
    finally:
        worker.destroy()
    assert "`streamfleet acl --queue NAME` prints the rules" in line


async def test_a_client_that_may_not_read_it_says_so(guarded: Guarded) -> None:
    with pytest.raises(NotPermitted, match="streamfleet acl"):
        async with Client(without_meta(guarded, Role.PRODUCER)):
            pass


async def test_a_client_that_may_not_read_it_any_more_is_refused_each_time(guarded: Guarded) -> None:
    async with guarded.broker(without_meta(guarded, Role.PRODUCER)) as broker:
        for _ in range(2):
            with pytest.raises(NotPermitted, match="streamfleet acl"):
                await broker.refresh_configuration()


def test_doctor_looks_at_all_else_where_it_may_not_read_it(guarded: Guarded) -> None:
    ended = streamfleet(without_meta(guarded, Role.OPERATOR), "doctor", "--json")
    levels = {check["name"]: check["level"] for check in json.loads(ended.stdout)}
    assert levels["configuration"] == "unknown"
    assert levels["mistyped"] == "ok"

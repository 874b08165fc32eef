"""The health server by itself."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from streamfleet.common import metrics
from streamfleet.common.errors import SettingsError
from streamfleet.common.health import Health, HealthServer


class Patient:
    """A process whose health is asked for."""

    def __init__(self) -> None:
        self.health = Health(live=True, ready=True, reason="ready")


@pytest.fixture
def patient() -> Patient:
    return Patient()


@pytest.fixture
def server(patient: Patient) -> Iterator[HealthServer]:
    server = HealthServer("127.0.0.1", 0, lambda: patient.health)
    server.start()
    yield server
    server.stop()


def get(server: HealthServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("live", "ready", "livez", "readyz"),
    [
        (True, True, (200, "ok\n"), (200, "ok\n")),
        (True, False, (200, "ok\n"), (503, "why\n")),
        (False, True, (503, "why\n"), (503, "why\n")),
        (False, False, (503, "why\n"), (503, "why\n")),
    ],
)
def test_the_probes(
    server: HealthServer, patient: Patient, live: bool, ready: bool, livez: tuple[int, str], readyz: tuple[int, str]
) -> None:
    patient.health = Health(live, ready, "why")
    assert get(server, "/livez") == livez
    assert get(server, "/readyz") == readyz


def test_metrics_and_unknown_pages(server: HealthServer) -> None:
    metrics.READY.set(0)
    status, page = get(server, "/metrics")
    assert status == 200
    assert "\nstreamfleet_ready " in page
    assert get(server, "/")[0] == 404


def test_metrics_of_a_registry_of_ones_own() -> None:
    registry = CollectorRegistry()
    Gauge("odd", "Of this test.", registry=registry).set(7)
    server = HealthServer("127.0.0.1", 0, lambda: Health(live=True, ready=True, reason=""), registry)
    server.start()
    try:
        assert get(server, "/metrics") == (200, "# HELP odd Of this test.\n# TYPE odd gauge\nodd 7.0\n")
    finally:
        server.stop()


def test_a_taken_port_is_named_with_its_setting(server: HealthServer) -> None:
    with pytest.raises(SettingsError, match="STREAMFLEET_HEALTH_PORT"):
        HealthServer("127.0.0.1", server.port, lambda: Health(live=True, ready=True, reason=""))
    with pytest.raises(SettingsError, match=r"^STREAMFLEET_OTHER_PORT: "):
        HealthServer(
            "127.0.0.1", server.port, lambda: Health(live=True, ready=True, reason=""), setting="STREAMFLEET_OTHER_PORT"
        )

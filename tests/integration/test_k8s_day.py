"""The chart's two triggers on a simulated day, and the arithmetic of KEDA and the HorizontalPodAutoscaler in it."""

from typing import Any

import pytest

from tests.integration.k8s_day import (
    PAGE,
    TRIGGERS,
    Autoscaler,
    Outcome,
    Simulation,
    day,
    fresh,
    outcomes,
    rendered,
)
from tests.integration.k8s_manifests import pod_of, pools

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches Helm first

MORNING_H = 10
NIGHTS = 7
"""Six lone requests of the night, and the morning's first."""


def wrong(found: Outcome) -> list[str]:
    """Claims that a day does not hold."""
    claims = {
        "from 0 to 1 and back": found.wakes == found.sleeps == NIGHTS,
        "nothing lost": found.unanswered == 0,
        "in time": found.late - found.late_of_cold <= found.requests / 5000,
    }
    return [claim for claim, holds in claims.items() if not holds]


@pytest.mark.parametrize("by", TRIGGERS)
def test_each_trigger_carries_the_morning(by: str) -> None:
    assert wrong(Simulation(rendered(by), day(MORNING_H)).run()) == []


@pytest.mark.long
def test_each_trigger_carries_the_day() -> None:
    assert [wrong(found) for found in outcomes().values()] == [[], []]
    assert all(found.handed_back for found in outcomes().values())
    prometheus, streams = (outcomes()[by] for by in TRIGGERS)
    assert prometheus.worker_s < streams.worker_s < 1.2 * prometheus.worker_s
    assert abs(prometheus.late - streams.late) <= prometheus.requests / 5000


@pytest.mark.long
def test_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert fresh(page) == page, "run: python -m tests.integration.k8s_day"


def test_pod_that_is_killed_early_hands_back_more() -> None:
    manifests = rendered("redis-streams")
    before = Simulation(manifests, day(MORNING_H)).run()
    pod_of(pools(manifests)[0])["terminationGracePeriodSeconds"] = 5
    assert Simulation(manifests, day(MORNING_H)).run().handed_back > 2 * before.handed_back


def hpa(up: dict[str, Any] | None = None, down: dict[str, Any] | None = None) -> Autoscaler:
    """An autoscaler of 1 to 20 replicas that may do anything at once, but for these rules."""
    anything = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 99, "periodSeconds": 15}]}
    behavior = {"scaleUp": anything | (up or {}), "scaleDown": anything | (down or {})}
    advanced = {"horizontalPodAutoscalerConfig": {"behavior": behavior}}
    return Autoscaler({"minReplicaCount": 0, "maxReplicaCount": 20, "advanced": advanced})


@pytest.mark.parametrize(
    ("metrics", "gets"),
    [
        ([(109, 10)], 10),
        ([(91, 10)], 10),
        ([(111, 10)], 12),
        ([(81, 10)], 9),
        ([(0, 10)], 1),
        ([(999, 10)], 20),
        ([(50, 10), (14, 1)], 14),
        ([(50, 10), (9.5, 1)], 10),  # the second asks for no change, not for less
    ],
)
def test_largest_wish_beyond_the_tolerance_counts_within_the_bounds(
    metrics: list[tuple[float, float]], gets: int
) -> None:
    assert hpa().replicas(0, 10, metrics) == gets


def steps(autoscaler: Autoscaler, having: int, wishes: list[int]) -> list[int]:
    """The replicas at each look, 15 s apart."""
    found = []
    for number, wish in enumerate(wishes):
        having = autoscaler.replicas(15.0 * number, having, [(wish, 1)])
        found.append(having)
    return found


def test_windows_take_the_largest_wish_on_the_way_down_and_the_smallest_on_the_way_up() -> None:
    assert steps(hpa(down={"stabilizationWindowSeconds": 60}), 4, [8, 2, 2, 5, 2, 2, 2, 2]) == [8, 8, 8, 8, 5, 5, 5, 2]
    assert steps(hpa(up={"stabilizationWindowSeconds": 30}), 4, [4, 8, 6, 9, 9]) == [4, 4, 6, 6, 9]


def test_policies_bound_the_change_of_a_period_and_the_largest_counts() -> None:
    def policies(*each: tuple[str, int, int]) -> dict[str, Any]:
        return {"policies": [{"type": kind, "value": value, "periodSeconds": s} for kind, value, s in each]}

    assert steps(hpa(up=policies(("Pods", 2, 30))), 4, [20] * 5) == [6, 6, 8, 8, 10]
    assert steps(hpa(up=policies(("Pods", 2, 15), ("Percent", 100, 15))), 1, [20] * 4) == [3, 6, 12, 20]
    assert steps(hpa(down=policies(("Percent", 50, 30))), 16, [1] * 5) == [8, 8, 4, 4, 2]

"""The queries of the autoscalers: the formula of k8s_formula.py, in Prometheus's words."""

import random
import re
from pathlib import Path

import pytest

from streamfleet.common.protocol import LANES
from streamfleet.operator.exporter.families import FAMILIES
from tests.integration import k8s_formula
from tests.integration.k8s_formula import PARTS, View
from tests.integration.k8s_manifests import ROOT, only, with_component
from tests.integration.k8s_promtool import Case, complaints
from tests.integration.k8s_scaling import COMPONENTS, behavior_of, queries

pytestmark = pytest.mark.timeout(240)  # a bare machine fetches kubectl first


def series(view: View, queue: str = "default", pod: str = "a") -> dict[str, float]:
    """Returns the exporter's series for a fleet in this state."""
    own = f'namespace="fleet",pod="{pod}",queue="{queue}"'
    found: dict[str, float] = {
        f"streamfleet_queue_worker_running{{{own}}}": view.running,
        f"streamfleet_queue_worker_slots{{{own}}}": view.slots * view.ready,
        f"streamfleet_queue_outstanding{{{own}}}": view.outstanding,
        f'streamfleet_queue_workers{{{own},state="ready"}}': view.ready,
        f'streamfleet_queue_workers{{{own},state="starting"}}': 0,
    }
    if view.work_s is not None:
        found[f"streamfleet_queue_work_seconds{{{own}}}"] = view.work_s
    if view.pressure_s is not None:
        for number, lane in enumerate(LANES):
            label = f'{own},lane="{lane.value}"'
            found[f"streamfleet_queue_deadline_pressure_seconds{{{label}}}"] = view.pressure_s - 10 * number
    return {name: float(value) for name, value in found.items()}


def case(view: View, more: dict[str, float] | None = None, said: dict[str, str] | None = None) -> Case:
    """Returns a case: the queries have to give the formula's values for this view."""
    asked = queries() if said is None else said
    return Case(series(view) | (more or {}), {query: PARTS[name](view) for name, query in asked.items()})


def views() -> list[View]:
    """The corners, and many more."""
    drawn = random.Random(20)
    corners = [
        View(0, 16, 0, 0, None, None),
        View(0, 16, 0, 250, None, None),
        View(0, 16, 0, 250, 1e6, None),
        View(1, 16, 0, 0, 0.0, None),
        View(1, 16, 16, 16, None, None),
        View(3, 16, 48, 5000, 900.0, 240.0),
        View(3, 16, 48, 60, 12.0, -500.0),
        View(3, 16, 48, 60, 12.0, -60.0),
        View(40, 256, 10240, 10240, 0.5, None),
    ]
    for _ in range(25):
        ready, slots = drawn.randint(1, 40), drawn.choice([4, 16, 100, 256])
        running = drawn.randint(0, ready * slots)
        outstanding = running + drawn.choice([0, drawn.randint(0, 10_000)])
        work, late = drawn.uniform(0, 2000), drawn.uniform(-400, 400)
        corners.append(View(ready, slots, running, outstanding, work, drawn.choice([None, late])))
    return corners


def test_queries_say_what_the_formula_says(tmp_path: Path) -> None:
    assert list(queries()) == list(PARTS)
    assert complaints([case(view) for view in views()], tmp_path) == ""


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        (View(4, 4, 0, 0, None, None), 0.0),
        (View(4, 4, 0, 1, None, None), 1.0),
        (View(4, 4, 16, 16, None, None), 4.0),
        (View(4, 4, 4, 4, None, None), 1.25),
        (View(4, 4, 16, 999, 1200.0, None), 8.0),
        (View(4, 4, 16, 999, 1.0, 60.0), 8.0),
        (View(4, 4, 16, 999, 1.0, -61.0), 4.0),
    ],
)
def test_workers_wanted_by_work_and_deadlines(view: View, wanted: float) -> None:
    assert k8s_formula.wanted(view) == pytest.approx(wanted)


def test_other_queues_and_a_second_exporter_change_nothing(tmp_path: Path) -> None:
    view, other = View(3, 16, 20, 400, 90.0, 12.0), View(9, 100, 900, 9000, 5000.0, 4000.0)
    beside = series(other, queue="other") | series(view, pod="b")
    assert complaints([case(view, beside)], tmp_path) == ""


def test_without_the_exporter_there_is_no_number_for_the_fallback_to_replace(tmp_path: Path) -> None:
    blind = Case({'streamfleet_exporter_up{queue="default"}': 0.0}, dict.fromkeys(queries().values()))
    assert complaints([blind], tmp_path) == ""
    for each in only(with_component("autoscaling-keda"), "ScaledObject")["spec"]["triggers"]:
        # An error, then, rather than 0.
        assert each["metadata"]["ignoreNullValues"] == "false"


def test_work_wakes_an_empty_fleet_and_only_that_keeps_it(tmp_path: Path) -> None:
    for outstanding, expected in ((0, 0.0), (1, 1.0), (7, 1.0)):
        view = View(0, 16, 0, outstanding, 500.0, 300.0)
        asked = {query: expected if name == "outstanding" else 0.0 for name, query in queries().items()}
        assert complaints([Case(series(view), asked)], tmp_path) == ""
    spec = only(with_component("autoscaling-keda"), "ScaledObject")["spec"]
    assert spec["minReplicaCount"] == 0
    assert {each["metadata"]["activationThreshold"] for each in spec["triggers"]} == {"0"}


def test_constants_are_those_of_the_formula() -> None:
    bare = {name: re.sub(r"\{[^}]*\}|[a-z_]+", "", query) for name, query in queries().items()}
    numbers = {name: {float(each) for each in re.findall(r"[\d.]+", text)} - {0, 1} for name, text in bare.items()}
    assert numbers == {
        "kept": {k8s_formula.BUSY_SHARE},
        "backlog": {k8s_formula.CLEAR_S},
        "pressure": {k8s_formula.LEAD_S, k8s_formula.CATCH_UP_S},
        "outstanding": set(),
    }
    for component, kind in COMPONENTS.items():
        scaler = only(with_component(component), kind)
        behavior = behavior_of(scaler)
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] == k8s_formula.STABLE_S > k8s_formula.LEAD_S
        assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
        # In one step.
        (up,) = behavior["scaleUp"]["policies"]
        (down,) = behavior["scaleDown"]["policies"]
        assert (up["type"], up["value"], up["periodSeconds"]) == ("Pods", k8s_formula.MOST, k8s_formula.STEP_S)
        assert (down["type"], down["value"]) == ("Percent", 100)


def test_metrics_exist_and_are_documented() -> None:
    documented = set(re.findall(r"`(streamfleet_\w+)`", (ROOT / "docs/metrics.md").read_text(encoding="utf-8")))
    exported = {family.name for family in FAMILIES}
    used = {name for query in queries().values() for name in re.findall(r"streamfleet_\w+", query)}
    assert used
    assert used <= documented & exported

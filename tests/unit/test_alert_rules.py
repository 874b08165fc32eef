"""The alert rules: promtool takes them, docs/operate.md has each, and they ask for metrics that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import program
from tests.unit.test_metrics_page import documented, names_in

THIRD_PARTY = {
    "process_start_time_seconds",  # prometheus-client's, on every worker's page
    "redis_memory_max_bytes",  # redis_exporter's, both
    "redis_memory_used_bytes",
}
SEVERITIES = {"critical", "warning"}
# Of PromQL, as far as the rules use it; what else looks like a name, and is no label, has to be a metric.
WORDS = {
    *("absent", "changes", "clamp_min", "group", "increase", "max", "min", "present_over_time", "sum", "count", "topk"),
    *("histogram_quantile", "rate"),
    *("and", "by", "offset", "on", "or", "unless"),
}
Rule = dict[str, Any]
pytestmark = pytest.mark.timeout(180)
"""promtool plays hours of 25 rules: seconds of a processor, which a busy machine may not have at once."""


@pytest.fixture(scope="module")
def rules_file(repository: Path) -> Path:
    return repository / "monitoring/rules/streamfleet.yaml"


@pytest.fixture(scope="module")
def rules(rules_file: Path) -> list[Rule]:
    groups = yaml.safe_load(rules_file.read_text(encoding="utf-8"))["groups"]
    assert len({group["name"] for group in groups}) == len(groups)
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def cases(repository: Path) -> list[Path]:
    return sorted((repository / "monitoring/tests").glob("*.yaml"))


@pytest.fixture(scope="module")
def promtool() -> str:
    """Its path. Without it, the tests that need it are skipped."""
    return program("promtool")


def run(promtool: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [promtool, *map(str, arguments)]
    return subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )


def test_promtool_takes_the_rules(promtool: str, rules_file: Path) -> None:
    done = run(promtool, "check", "rules", rules_file)
    assert done.returncode == 0, done.stdout


def test_alerts_fire_when_they_should_and_only_then(promtool: str, cases: list[Path]) -> None:
    done = run(promtool, "test", "rules", *cases)
    assert done.returncode == 0, done.stdout


def test_every_alert_has_a_case_that_fires_and_one_that_is_silent(rules: list[Rule], cases: list[Path]) -> None:
    fires: set[tuple[str, str]] = set()
    silent: set[str] = set()
    for path in cases:
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]:
            for case in group["alert_rule_test"]:
                fires |= {(case["alertname"], each["exp_labels"]["severity"]) for each in case["exp_alerts"]}
                silent |= {case["alertname"]} if not case["exp_alerts"] else set()
    assert fires == {(rule["alert"], rule["labels"]["severity"]) for rule in rules}
    assert silent == {rule["alert"] for rule in rules}


def test_every_alert_says_how_bad_where_and_what_to_read(rules: list[Rule]) -> None:
    for rule in rules:
        name, notes = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in SEVERITIES, name
        assert set(notes) == {"summary", "description", "runbook_url"}, name
        assert notes["runbook_url"] == f"docs/operate.md#{name.lower()}"
        # A server's memory is no queue's: its summary has the server instead. A gateway serves several queues.
        where = {"instance"} if name == "StreamfleetRedisMemory" else {"queue"}
        where = {"job"} if name.startswith("StreamfleetGateway") else where
        where |= {"lane"} if "by (queue, lane)" in rule["expr"] else set()
        assert all(f"$labels.{label}" in notes["summary"] for label in where), name


def asked(expr: str) -> set[str]:
    """Names of the metrics that an expression asks for."""
    bare = re.sub(r'\{[^}]*\}|\[[^\]]*\]|"[^"]*"', "", expr)
    bare = re.sub(r"\b(by|on)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\boffset\s+\w+", "", bare)
    return set(re.findall(r"\b[a-z_][a-z0-9_]*\b", bare)) - WORDS


def test_expressions_ask_for_metrics_that_exist(repository: Path, rules: list[Rule]) -> None:
    known = documented((repository / "docs/metrics.md").read_text(encoding="utf-8"))
    everything = set().union(*(asked(rule["expr"]) for rule in rules))
    assert names_in(" ".join(everything)) <= set(known)
    assert {name for name in everything if not name.startswith("streamfleet_")} == THIRD_PARTY
    texts = " ".join(text for rule in rules for text in rule["annotations"].values())
    assert names_in(texts) <= set(known)


def test_selectors_name_values_that_exist(repository: Path, rules: list[Rule]) -> None:
    page = (repository / "docs/metrics.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)`(?: of a dead letter)? \| (.*) \|$", page, re.MULTILINE))
    named = [each for rule in rules for each in re.findall(r'(\w+)="(\w+)"', rule["expr"])]
    assert named
    for label, value in named:
        assert value in re.findall(r"`([a-z_]+)`", listed[label]), (label, value)


def test_operate_has_each_alert_with_its_severities_where_to_look_and_what_to_do(
    repository: Path, rules: list[Rule]
) -> None:
    page = (repository / "docs/operate.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### (Streamfleet\w+)\n\n\*([a-z, ]+)\* (.*?)(?=^### |\Z)", page, re.MULTILINE | re.DOTALL)
    severities: dict[str, set[str]] = {}
    for rule in rules:
        severities.setdefault(rule["alert"], set()).add(rule["labels"]["severity"])
    assert {name: set(said.split(", ")) for name, said, _ in sections} == severities
    for name, _, text in sections:
        assert re.search(r"\*\*Look:\*\* .*^\*\*Do:\*\* ", text, re.MULTILINE | re.DOTALL), name

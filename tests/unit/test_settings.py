"""Settings: validated where the process starts, one line for each that is wrong, secrets never shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr

from streamfleet.common.errors import SettingsError
from streamfleet.common.limits import ENVELOPE_BYTES
from streamfleet.common.settings import (
    GROUPS,
    EngineSettings,
    Group,
    QueueSettings,
    WorkerSettings,
    load,
    load_all,
    unknown_variables,
    variable,
)
from tests.integration.test_credentials import TOKENS_OF_A_MODULE

Env = pytest.MonkeyPatch


def refusal(group: type[Group], **given: object) -> str:
    """Returns the error about these settings."""
    with pytest.raises(SettingsError) as caught:
        load(group, **given)
    return str(caught.value)


def test_a_provider_of_credentials_is_named_by_module_and_object(monkeypatch: Env) -> None:
    monkeypatch.setenv("STREAMFLEET_REDIS_CREDENTIALS", "tests.integration.test_credentials:TOKENS_OF_A_MODULE")
    assert load(QueueSettings).redis_credentials is TOKENS_OF_A_MODULE


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module:tokens", "No module named 'no_such_module'"),
        ("json:tokens", "cannot import name 'tokens' from 'json'"),
        ("json:loads", "must name a CredentialProvider"),
        ("broken_provider:provider", "cannot be imported: RuntimeError: no metadata service"),
        ("tests.integration.test_credentials:Tokens", "no class of them"),
    ],
)
def test_a_provider_that_there_is_not_is_said_in_one_line(
    value: str, said: str, tmp_path: Path, monkeypatch: Env
) -> None:
    (tmp_path / "broken_provider.py").write_text("raise RuntimeError('no metadata service')")
    monkeypatch.syspath_prepend(tmp_path)
    told = refusal(QueueSettings, redis_credentials=value)
    assert told.startswith("STREAMFLEET_REDIS_CREDENTIALS: ")
    assert said in told
    assert len(told.splitlines()) == 1


def test_the_environment_counts_and_what_is_given_counts_more(monkeypatch: Env) -> None:
    monkeypatch.setenv("STREAMFLEET_QUEUE", "blue")
    monkeypatch.setenv("STREAMFLEET_LANE_LIMIT", "7")
    settings = load(QueueSettings, lane_limit=9, queue=None)
    assert (settings.queue, settings.lane_limit) == ("blue", 9)


@pytest.mark.parametrize(
    ("group", "name", "well_known", "value"),
    [
        (QueueSettings, "redis_url", "REDIS_URL", "redis://elsewhere"),
        (WorkerSettings, "batch_size", "BATCH_SIZE", "9"),
        (WorkerSettings, "batch_timeout_ms", "BATCH_TIMEOUT_MS", "9"),
        (WorkerSettings, "target_latency_ms", "TARGET_LATENCY_MS", "9"),
        (EngineSettings, "vllm_url", "VLLM_URL", "http://elsewhere"),
    ],
)
def test_well_known_names_count_below_our_own(
    monkeypatch: Env, group: type[Group], name: str, well_known: str, value: str
) -> None:
    needed = {"engine": "openai"} if group is EngineSettings else {}

    def loaded() -> str:
        found = getattr(load(group, **needed), name)
        return found.get_secret_value() if isinstance(found, SecretStr) else str(found)

    monkeypatch.setenv(well_known, value)
    assert loaded() == value
    other = value.replace("elsewhere", "nearer").replace("9", "8")
    monkeypatch.setenv(variable(name), other)
    assert loaded() == other


def test_every_field_has_its_variable(monkeypatch: Env) -> None:
    for group in GROUPS:
        for name in group.model_fields:
            monkeypatch.setenv(variable(name), "")
    monkeypatch.setenv("STREAMFLEET_ENGINE", "simulated")
    load_all()
    assert unknown_variables() == {}


def test_empty_variables_are_as_good_as_none(monkeypatch: Env) -> None:
    monkeypatch.setenv("STREAMFLEET_LANE_LIMIT", "")
    assert load(QueueSettings).lane_limit == 100_000


def test_each_wrong_setting_gets_one_line_with_its_variable_and_value(monkeypatch: Env) -> None:
    monkeypatch.setenv("STREAMFLEET_LANE_LIMIT", "0")
    monkeypatch.setenv("STREAMFLEET_QUEUE", "a{b}")
    monkeypatch.setenv("STREAMFLEET_SHARES", "1,2")
    monkeypatch.setenv("STREAMFLEET_RESULT_TTL_MS", "soon\nish")
    lines = refusal(QueueSettings).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == [
        "STREAMFLEET_LANE_LIMIT",
        "STREAMFLEET_QUEUE",
        "STREAMFLEET_RESULT_TTL_MS",
        "STREAMFLEET_SHARES",
    ]
    assert 'STREAMFLEET_QUEUE: must not contain any of {}, not "a{b}"' in lines
    assert 'STREAMFLEET_SHARES: must be 4 numbers, for critical,high,normal,low, not "1,2"' in lines


def test_the_lines_of_all_groups_come_together(monkeypatch: Env) -> None:
    monkeypatch.setenv("STREAMFLEET_LANE_LIMIT", "0")
    monkeypatch.setenv("BATCH_SIZE", "-1")
    monkeypatch.setenv("STREAMFLEET_LOG_LEVEL", "loud")
    with pytest.raises(SettingsError) as caught:
        load_all()
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "STREAMFLEET_LANE_LIMIT",
        "STREAMFLEET_MODEL is not set",
        "BATCH_SIZE",
        "STREAMFLEET_LOG_LEVEL",
    ]


def test_given_values_reach_the_group_that_has_them() -> None:
    queue, engine, worker, logs = load_all(
        queue="blue", engine="simulated", drain_ms=2_000, log_level="debug", model=None
    )
    assert (queue.queue, engine.engine, worker.drain_ms, logs.log_level) == ("blue", "simulated", 2_000, "debug")


def test_passwords_are_never_shown(monkeypatch: Env) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:hunter2@host")
    monkeypatch.setenv("STREAMFLEET_VLLM_API_KEY", "hunter2")
    assert "hunter2" not in repr(load(QueueSettings))
    assert "hunter2" not in repr(load(EngineSettings, engine="openai"))
    assert "hunter2" not in refusal(QueueSettings, redis_url=["hunter2"])
    assert "hunter2" not in refusal(EngineSettings, engine="openai", vllm_api_key={"key": "hunter2"})


WRONG: list[tuple[type[Group], dict[str, Any], str]] = [
    *((QueueSettings, {"shares": given}, "SHARES: ") for given in ("0,0,100", "a,b,c,d", "-1,0,0,0", "500,500,1,0")),
    *((QueueSettings, {"shares": given}, "SHARES: ") for given in ("1,2,3,4,5", "")),
    *((WorkerSettings, {"worker_name": name}, "WORKER_NAME: ") for name in ("a b", "~", "w~1", "é", "x" * 257)),
    (EngineSettings, {"model": "m", "engine_args": "--a 'b"}, "ENGINE_ARGS: "),
    (EngineSettings, {}, "MODEL is not set: the vllm engine needs a model name or folder"),
    (EngineSettings, {"engine": "vllm", "vllm_url": "http://here:8000"}, "MODEL is not set: the vllm engine needs"),
    *(
        (EngineSettings, {"engine": "openai", "remote_busy": given}, "REMOTE_BUSY: must be HTTP statuses from 400 to")
        for given in ("200", "399", "600", "429, 5299")
    ),
]


@pytest.mark.parametrize(("group", "given_values", "said"), WRONG, ids=str)
def test_what_cannot_be_is_refused_by_name(group: type[Group], given_values: dict[str, Any], said: str) -> None:
    assert refusal(group, **given_values).startswith(f"STREAMFLEET_{said}")


def test_statuses_are_split() -> None:
    assert load(EngineSettings, engine="openai", remote_busy="400, 599").remote_busy == (400, 599)


def test_shares_are_split_and_stripped() -> None:
    assert load(QueueSettings, shares=" 1, 2,3 ,4").shares == (1, 2, 3, 4)
    assert load(QueueSettings, shares=(0, 0, 0, 1000)).shares == (0, 0, 0, 1000)


def test_vllm_arguments_are_split_as_a_shell_would() -> None:
    settings = load(EngineSettings, model="m", engine_args="--max-num-seqs 64 --override '{\"a\": 1}'")
    assert settings.engine_args == ("--max-num-seqs", "64", "--override", '{"a": 1}')


def test_a_url_without_a_model_means_the_server_there(monkeypatch: Env) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://here")
    monkeypatch.setenv("BATCH_SIZE", "32")
    monkeypatch.setenv("BATCH_TIMEOUT_MS", "20")
    monkeypatch.setenv("VLLM_URL", "http://here:8000")
    _, engine, worker, _ = load_all()
    assert (engine.engine, engine.vllm_url) == ("openai", "http://here:8000")
    assert (worker.batch_size, worker.batch_timeout_ms) == (32, 20)
    assert load(EngineSettings, model="m").engine == "vllm"
    assert load(EngineSettings, engine="simulated").engine == "simulated"


def test_limits_carry_what_the_scripts_need() -> None:
    limits = load(QueueSettings, max_body_bytes=2048, shares="1,2,3,4", lane_limit=5, dead_bytes=2**25).limits()
    assert limits.max_entry_bytes == 2048 + ENVELOPE_BYTES
    assert (limits.shares, limits.lane_limit, limits.dead_bytes, limits.now_ms) == ((1, 2, 3, 4), 5, 2**25, None)


def test_misspelt_variables_are_noticed(monkeypatch: Env) -> None:
    monkeypatch.setenv("STREAMFLEET_LANE_LIMITS", "1")
    assert unknown_variables() == {"STREAMFLEET_LANE_LIMITS": "STREAMFLEET_LANE_LIMIT"}


@example("0,0", (WorkerSettings, "allow"))
@given(st.text(max_size=60), st.sampled_from([(group, name) for group in GROUPS for name in group.model_fields]))
def test_any_text_for_any_setting_is_taken_or_refused_in_one_line(value: str, where: tuple[type[Group], str]) -> None:
    group, name = where
    given_values = {"engine": "simulated", name: value} if group is EngineSettings else {name: value}
    refused = ""
    try:
        load(group, **given_values)
    except SettingsError as error:
        refused = str(error)
    assert len(refused.splitlines()) <= 1
    assert refused.startswith("STREAMFLEET_") or not refused


@pytest.mark.parametrize("name", ["STREAMFLEET_RESULT_TTL_MS", "STREAMFLEET_LEASE_MS", "STREAMFLEET_WATCHDOG_S"])
def test_numbers_that_redis_or_a_timer_cannot_take_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1" + "0" * 30)
    with pytest.raises(SettingsError, match=rf"{name}: must be at most 10+, not"):
        load_all(engine="simulated")


def test_a_lane_that_could_never_take_the_largest_request_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"STREAMFLEET_LANE_BYTES.*at least twice STREAMFLEET_MAX_BODY_BYTES"):
        load(QueueSettings, lane_bytes=8_388_607)
    limits = load(QueueSettings, lane_bytes=2_097_152, max_body_bytes=1_048_576).limits()
    assert limits.lane_bytes == 2_097_152

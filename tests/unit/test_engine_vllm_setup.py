"""vLLM's arguments and environment, without vLLM."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamfleet.common.settings import EngineSettings, load
from streamfleet.worker.engine import factory, vllm, vllm_host, vllm_setup
from streamfleet.worker.engine.vllm_setup import GUARD, EngineArgs, arguments, prepare_environment

VARIABLES = (
    "VLLM_WORKER_MULTIPROC_METHOD",
    "HF_HUB_OFFLINE",
    "TORCHDYNAMO_DISABLE",
    "VLLM_MAX_N_SEQUENCES",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_PLUGINS",
)
DEFAULTS = [
    "--scheduling-policy=priority",
    "--structured-outputs-config.backend=xgrammar",
    "--enable-prompt-tokens-details",
]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that whatever the test sets is taken back
        monkeypatch.delenv(name)


def test_what_is_asked_for_replaces_a_default() -> None:
    asked = {"max_num_seqs": 8, "enable-chunked-prefill": True, "--scheduling-policy": None}
    assert arguments(asked, cpu=True) == [
        *DEFAULTS[1:],
        "--enforce-eager",
        "--enable-chunked-prefill",
        "--max-num-seqs=8",
    ]


def test_a_reserve_is_added_to_the_default_alone() -> None:
    assert "--max-num-seqs=40" in arguments({}, cpu=True, reserve_percent=25)
    assert arguments({}, cpu=False, reserve_percent=25) == DEFAULTS
    given = arguments({"max-num-seqs": 8}, cpu=True, reserve_percent=25)
    assert [word for word in given if "seqs" in word] == ["--max-num-seqs=8"]
    listed = arguments(["--max-num-seqs", "4"], cpu=False, reserve_percent=25)
    assert listed == [*DEFAULTS, "--max-num-seqs", "4"]


def test_a_default_is_not_given_twice() -> None:
    # vLLM would say so, as a warning, at each start.
    assert arguments(["--max_num_seqs=4", "--scheduling-policy", "fcfs"], cpu=True) == [
        *DEFAULTS[1:],
        "--enforce-eager",
        "--no-enable-chunked-prefill",
        "--max_num_seqs=4",
        "--scheduling-policy",
        "fcfs",
    ]


async def test_a_path_without_a_model_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "SmolLM2")
    engine = vllm.VllmEngine(missing, cpu=True)
    with pytest.raises(FileNotFoundError, match=f"STREAMFLEET_MODEL: {missing} is not there"):
        await engine.start()


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-1.5B-Instruct", "s3://bucket/model", "model"])
def test_names_of_the_hub_are_left_to_vllm(model: str) -> None:
    vllm_setup.check_model(model)


def test_the_factory_builds_engines_with_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = load(EngineSettings, engine="simulated", simulated_profile="fast")
    assert factory.build(simulated, reserve_percent=25).capacity().slots == 320
    assert factory.build(simulated).capacity().slots == 256
    monkeypatch.setattr(vllm, "is_cpu_build", lambda: True)
    engine = factory.build(load(EngineSettings, engine="vllm", model="m"), reserve_percent=25)
    assert isinstance(engine, vllm.VllmEngine)
    assert "--max-num-seqs=40" in engine._argv
    assert engine._reserve_percent == 25


class Args:
    """vLLM's engine arguments, and what it chooses where they tell nothing."""

    def __init__(self, given: SimpleNamespace) -> None:
        self.given = given

    def create_engine_config(self) -> Any:
        chosen = {"max_num_seqs": self.given.max_num_seqs or 128, "max_num_batched_tokens": 2048}
        return SimpleNamespace(
            scheduler_config=SimpleNamespace(**chosen), model_config=SimpleNamespace(max_model_len=2048)
        )


@pytest.mark.parametrize(
    ("chunked", "given", "reserve_percent", "started"),
    [
        (None, (None, None), 0, (None, None)),
        (None, (None, None), 25, (160, None)),
        (None, (8, None), 25, (8, None)),
        (True, (None, None), 25, (160, None)),
        (False, (None, None), 25, (160, 2208)),
        (False, (40, None), 25, (40, 2088)),
        (False, (40, None), 0, (40, 2088)),
        (False, (40, 4096), 25, (40, 4096)),
    ],
)
def test_limits_that_vllm_chooses_have_room(
    monkeypatch: pytest.MonkeyPatch,
    chunked: bool | None,
    given: tuple[int | None, int | None],
    reserve_percent: int,
    started: tuple[int | None, int | None],
) -> None:
    """For the reserve, and for a whole prompt beside a token of each running sequence."""
    built: list[SimpleNamespace] = []
    names = SimpleNamespace(
        AsyncEngineArgs=SimpleNamespace(from_cli_args=Args),
        AsyncLLM=SimpleNamespace(from_engine_args=lambda args, **_: built.append(args.given)),
    )
    parsed = SimpleNamespace(max_num_seqs=given[0], max_num_batched_tokens=given[1], enable_chunked_prefill=chunked)
    monkeypatch.setattr(vllm_host, "find_names", lambda: names)
    monkeypatch.setattr(vllm_host, "_parse", lambda *_: parsed)
    vllm_host.build("m", [], None, reserve_percent)
    assert [(args.max_num_seqs, args.max_num_batched_tokens) for args in built] == [started]


@pytest.mark.parametrize(
    "asked",
    [
        {"structured-outputs-config": {"backend": "guidance"}},
        {"structured_outputs_config.backend": "guidance"},
        ["--structured-outputs-config", '{"reasoning_parser": "qwen3"}'],
        ["--structured_outputs_config.backend=guidance"],
    ],
)
def test_a_given_compiler_of_grammars_stands_alone(asked: EngineArgs) -> None:
    assert not [word for word in arguments(asked, cpu=False) if word.endswith("xgrammar")]


def test_every_kind_of_value_has_its_form() -> None:
    asked = {
        "enable-prefix-caching": True,
        "gpu-memory-utilization": 0.9,
        "served-model-name": ["a", "b"],
        "speculative-config": {"model": "m", "num_speculative_tokens": 3},
        "seed": -1,
        "chat-template": None,
    }
    assert arguments(asked, cpu=False)[len(DEFAULTS) :] == [
        "--enable-prefix-caching",
        "--gpu-memory-utilization=0.9",
        "--served-model-name",
        "a",
        "b",
        '--speculative-config={"model": "m", "num_speculative_tokens": 3}',
        "--seed=-1",
    ]


@pytest.mark.parametrize("name", ["", "--", "max num", "a;b"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a vLLM argument"):
        arguments({name: 1}, cpu=False)


def test_the_environment_on_a_cpu(tmp_path: Path) -> None:
    prepare_environment(str(tmp_path), cpu=True)
    assert [os.environ.get(name) for name in VARIABLES] == ["spawn", "1", "1", "16", "1", None]


def test_the_environment_on_a_gpu_with_a_model_of_the_hub() -> None:
    prepare_environment("owner/model", cpu=False, max_sequences=99)
    assert [os.environ.get(name) for name in VARIABLES] == ["spawn", None, None, "99", None, None]


def test_what_is_set_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "8")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    prepare_environment(str(tmp_path), cpu=True)
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "8"
    assert os.environ["HF_HUB_OFFLINE"] == "0"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux needs it")
def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_setup, "_NUMA", "libno-such-thing.so.1")
    with pytest.raises(ImportError, match=r"needs libno-such-thing\.so\.1: install it"):
        vllm_setup.check_libraries()


@pytest.mark.parametrize(
    ("chosen", "then"), [("mine", f"mine,{GUARD}"), (f"{GUARD},x", f"{GUARD},x"), ("", f",{GUARD}")]
)
def test_the_guard_is_among_chosen_plugins(monkeypatch: pytest.MonkeyPatch, chosen: str, then: str) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", chosen)
    prepare_environment("owner/model", cpu=False)
    assert os.environ["VLLM_PLUGINS"] == then

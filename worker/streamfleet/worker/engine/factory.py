"""Builds the engine that the settings ask for.

The module of each engine is imported only when it is wanted: a worker needs the packages of its own engine alone.
"""

from __future__ import annotations

from dataclasses import replace

from streamfleet.common.errors import SettingsError
from streamfleet.common.secret_files import FileSecret
from streamfleet.common.settings import EngineSettings
from streamfleet.worker.engine.base import Engine

SPEED = 1.0
"""Speed of the simulated engine, whose profile has the times of a real one; only tests cannot wait so long."""


def build(settings: EngineSettings, max_sequences: int = 16, reserve_percent: int = 0) -> Engine:
    """Returns an engine that has not been started.

    Args:
        settings: kind of engine and its options.
        max_sequences: most choices of one request; an engine with a limit of its own must not have a smaller one.
        reserve_percent: so many more sequences at once than the engine's default, unless the settings tell how many.

    Raises:
        SettingsError: a package that it needs is missing, or it cannot use its settings; the message tells what to do.
    """
    if settings.engine == "simulated":
        from streamfleet.worker.engine.simulated import SimulatedEngine
        from streamfleet.worker.engine.simulated_profile import GENERIC_FAST, SMOLLM2_135M_CPU

        profile = {"smollm2-cpu": SMOLLM2_135M_CPU, "fast": GENERIC_FAST}[settings.simulated_profile]
        profile = replace(profile, slots=profile.slots + profile.slots * reserve_percent // 100)
        return SimulatedEngine(profile, speed=SPEED, watchdog_s=settings.watchdog_s)
    try:
        return _vllm(settings, max_sequences, reserve_percent) if settings.engine == "vllm" else _openai(settings)
    except ValueError as error:
        name = "STREAMFLEET_ENGINE_ARGS" if settings.engine == "vllm" else "VLLM_URL"
        raise SettingsError(f"{name}: {error}") from None
    except ModuleNotFoundError as error:
        extra = "'.[gpu]' (or [cpu]) in a clone" if settings.engine == "vllm" else "'.[worker]' in a clone"
        raise SettingsError(
            f"STREAMFLEET_ENGINE: {settings.engine} needs {error.name}, which is not installed: pip install {extra}"
        ) from None


def _openai(settings: EngineSettings) -> Engine:
    from streamfleet.worker.engine.openai import OpenAIEngine, Upstream

    upstream = Upstream(
        settings.vllm_url,
        settings.remote_slots,
        settings.remote_timeout_s,
        watchdog_s=settings.watchdog_s,
        kv_tokens=settings.remote_kv_tokens or None,
        busy_statuses=frozenset(settings.remote_busy),
    )
    key, renewable = settings.vllm_api_key.get_secret_value, isinstance(settings.vllm_api_key, FileSecret)
    return OpenAIEngine(upstream, key if renewable or key() else None, renewable=renewable)


def _vllm(settings: EngineSettings, max_sequences: int, reserve_percent: int) -> Engine:
    from streamfleet.worker.engine.vllm import VllmEngine

    return VllmEngine(
        settings.model,
        list(settings.engine_args),
        watchdog_s=settings.watchdog_s,
        max_sequences=max_sequences,
        reserve_percent=reserve_percent,
    )

"""All settings, grouped, frozen and validated: loaded once at the start of a process, then passed on.

Each group reads environment variables named ``STREAMFLEET_<FIELD>``; a few well-known names count as well
(``REDIS_URL``, ``BATCH_SIZE``, ``BATCH_TIMEOUT_MS``, ``TARGET_LATENCY_MS``, ``VLLM_URL``). Nothing else in the project
reads the environment.
"""

from __future__ import annotations

import difflib
import os
import shlex
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from streamfleet.common.errors import InvalidRequest, SettingsError
from streamfleet.common.protocol import LANES, Lane, check_name
from streamfleet.common.secret_files import ONE_LINE, file_variables, is_one_line
from streamfleet.common.settings_gateway import GatewaySettings, read_route
from streamfleet.common.settings_queue import PREFIX, Group, QueueSettings, known_as, load, variable

__all__ = [
    "EXPORTER_GROUPS",
    "GATEWAY_GROUPS",
    "GROUPS",
    "PREFIX",
    "WORKER_GROUPS",
    "EngineSettings",
    "ExporterSettings",
    "GatewaySettings",
    "Group",
    "LogSettings",
    "QueueSettings",
    "WorkerSettings",
    "load",
    "load_all",
    "load_for_exporter",
    "load_for_gateway",
    "unknown_variables",
    "variable",
]

Allowed = Literal[
    "beam_search", "chat_templates", "embeds", "grammars", "media_urls", "processor_kwargs", "prompt_logprobs"
]


class LogSettings(Group):
    """Logs and traces of the process."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="json for machines, console for people; auto is console on a terminal."
    )
    traces: Literal["off", "otlp"] = Field(
        "off",
        description=(
            "otlp: a worker's OpenTelemetry spans of each request, over HTTP to where OTEL_EXPORTER_OTLP_ENDPOINT says."
        ),
    )


class EngineSettings(Group):
    """The engine that runs the requests."""

    engine: Literal["vllm", "openai", "simulated"] = Field(
        "vllm",
        description=(
            "vllm: in this process; openai: a compatible server at VLLM_URL, the default where that is set and no "
            "model; simulated: no model, for tests."
        ),
    )
    model: str = Field("", description="Model name or folder for the vllm engine, as vLLM takes it.")
    engine_args: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="vLLM's own arguments, as vLLM names them: '--max-num-seqs 64 --enable-prefix-caching'.",
    )
    vllm_url: str = Field(
        "http://localhost:8000",
        validation_alias=known_as("VLLM_URL", "VLLM_URL"),
        description="Base URL of the server behind the openai engine.",
    )
    vllm_api_key: SecretStr = Field(SecretStr(""), description="API key for that server, where it wants one.")
    remote_slots: int = Field(
        64, ge=1, description="Most requests at once at the server behind the openai engine; fewer while it is busy."
    )
    remote_busy: Annotated[tuple[int, ...], NoDecode] = Field(
        (),
        description="HTTP statuses of a busy server, such as 529; 429, and 503 with Retry-After, always count.",
    )
    remote_kv_tokens: int = Field(
        0, ge=0, description="KV-cache tokens of that server, for prompts and their outputs; 0 for no limit."
    )
    remote_timeout_s: float = Field(
        600.0, gt=0, description="Longest wait for one answer of that server, in seconds; then it is tried again."
    )
    watchdog_s: float = Field(
        60.0,
        gt=0,
        description="An engine that runs requests without a step (openai: an answer) for so long has hung, in seconds.",
    )
    simulated_profile: Literal["smollm2-cpu", "fast"] = Field(
        "smollm2-cpu", description="Whose latencies the simulated engine follows."
    )

    @field_validator("vllm_api_key")
    @classmethod
    def _usable_key(cls, value: SecretStr) -> SecretStr:
        if not is_one_line(value.get_secret_value()):
            raise ValueError(ONE_LINE)
        return value

    @field_validator("engine_args", mode="before")
    @classmethod
    def _split_args(cls, value: Any) -> Any:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("remote_busy", mode="before")
    @classmethod
    def _split_statuses(cls, value: Any) -> Any:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("remote_busy")
    @classmethod
    def _statuses_of_errors(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 400 <= status <= 599 for status in value):
            raise ValueError("must be HTTP statuses from 400 to 599")
        return value

    @model_validator(mode="after")
    def _vllm_needs_a_model(self) -> Self:
        if self.engine != "vllm" or self.model:
            return self
        if "vllm_url" in self.model_fields_set and "engine" not in self.model_fields_set:
            object.__setattr__(self, "engine", "openai")
            return self
        raise ValueError(
            "STREAMFLEET_MODEL is not set: the vllm engine needs a model name or folder; "
            "for a server that runs elsewhere, set VLLM_URL in its place"
        )


class WorkerSettings(Group):
    """A worker: how many requests it takes, how long it keeps them, which ones it refuses."""

    worker_name: str = Field(
        "", description="Name of this worker, no other's; host, process id and a random part when empty."
    )
    worker_models: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Models and their queues, as in STREAMFLEET_GATEWAY_MODELS, all for one engine; where a body names none, "
            "the queue's first. Empty: STREAMFLEET_QUEUE, with all models."
        ),
    )
    batching: Literal["continuous", "window", "adaptive"] = Field(
        "continuous",
        description=(
            "continuous: as the engine has room; window: gather a batch, run it together; "
            "adaptive: as many at once as keep the target latency."
        ),
    )
    batch_size: int = Field(
        0,
        ge=0,
        validation_alias=known_as("BATCH_SIZE", "BATCH_SIZE"),
        description=(
            "Most requests at once (continuous, adaptive; 0 leaves it to the engine) or in one batch (window; 0 is 32)."
        ),
    )
    batch_timeout_ms: int = Field(
        50,
        ge=0,
        validation_alias=known_as("BATCH_TIMEOUT_MS", "BATCH_TIMEOUT_MS"),
        description="How long a window waits to fill, in ms; for STREAMFLEET_BATCHING=window alone.",
    )
    target_latency_ms: int = Field(
        0,
        ge=0,
        validation_alias=known_as("TARGET_LATENCY_MS", "TARGET_LATENCY_MS"),
        description="Run time that a request of the usual length is to have in the engine (adaptive), in ms.",
    )
    reserve_percent: int = Field(
        25,
        ge=0,
        le=100,
        description=("Slots and KV cache that the lane low leaves free for others, in percent of what it may use."),
    )
    patient_lanes: Annotated[tuple[Lane, ...], NoDecode] = Field(
        (Lane.NORMAL, Lane.LOW),
        description="Lanes that leave a reserve free, and give way to urgent requests: normal,low, or low, or none.",
    )
    checkpoint_tokens: int = Field(
        0,
        ge=0,
        description=(
            "Most output tokens of an answer that are lost with a killed worker: Redis keeps the others. 0: keeps none."
        ),
    )
    drain_ms: int = Field(25_000, ge=0, description="After SIGTERM, how long running requests may go on, in ms.")
    health_host: str = Field(
        "127.0.0.1", description="Where /livez, /readyz and /metrics listen; 0.0.0.0 in a container."
    )
    health_port: int = Field(9100, ge=0, le=65_535, description="Their port; 0 picks a free one.")
    # The cost limits of one request: docs/operate.md explains each.
    max_sequences: int = Field(32, ge=1, description="Most choices of one request: its n, for each of its prompts.")
    max_output_tokens: int = Field(
        0,
        ge=0,
        description="Most output tokens of one request, all choices together; 0: what a sequence can hold, for each.",
    )
    max_prompt_bytes: int = Field(
        0,
        ge=0,
        description="Most text of one request's prompts, in bytes; 0: 16 a token that a sequence can hold, for each.",
    )
    allow: Annotated[tuple[Allowed, ...], NoDecode] = Field(
        (),
        description=(
            "What requests may use although one can hurt all: beam_search, chat_templates, embeds, grammars, "
            "media_urls, processor_kwargs, prompt_logprobs."
        ),
    )

    @field_validator("patient_lanes")
    @classmethod
    def _least_urgent(cls, value: tuple[Lane, ...]) -> tuple[Lane, ...]:
        lanes = tuple(sorted(set(value), key=LANES.index))
        if lanes not in ((), LANES[3:], LANES[2:]):
            raise ValueError("must be low, or normal,low, or none")
        return lanes

    @field_validator("worker_models")
    @classmethod
    def _usable_models(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            read_route(text)
        return value

    @field_validator("allow", "patient_lanes", "worker_models", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if value == "none":
            return ()
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("worker_name")
    @classmethod
    def _usable_name(cls, value: str) -> str:
        if not value:
            return value
        try:
            return check_name(value, "worker_name", forbidden="~")
        except InvalidRequest as error:
            raise ValueError(error.message) from None

    @property
    def reserve(self) -> int:
        """The reserve that patient lanes leave free, in percent of what they may use; 0 for none."""
        return self.reserve_percent if self.patient_lanes and self.batching == "continuous" else 0

    @property
    def models_of_queues(self) -> dict[str, tuple[str, ...]]:
        """`worker_models`, parsed: the models of each queue, by the names that the engine knows."""
        found: dict[str, tuple[str, ...]] = {}
        for route in map(read_route, self.worker_models):
            found[route.queue] = (*found.get(route.queue, ()), route.served)
        return found

    @model_validator(mode="after")
    def _a_window_has_one_queue(self) -> Self:
        if self.batching == "window" and len(self.models_of_queues) > 1:
            raise ValueError(
                "STREAMFLEET_WORKER_MODELS names several queues: STREAMFLEET_BATCHING=window gathers requests of one"
            )
        return self

    @model_validator(mode="after")
    def _adaptive_needs_a_target(self) -> Self:
        if self.batching == "adaptive" and not self.target_latency_ms:
            raise ValueError("STREAMFLEET_TARGET_LATENCY_MS is not set: adaptive batching needs the latency to keep")
        return self


class ExporterSettings(Group):
    """`streamfleet exporter`: the queue's own metrics."""

    exporter_host: str = Field(
        "127.0.0.1", description="Where its /metrics, /livez and /readyz listen; 0.0.0.0 in a container."
    )
    exporter_port: int = Field(9101, ge=0, le=65_535, description="Their port; 0 picks a free one.")


WORKER_GROUPS: tuple[type[Group], ...] = (QueueSettings, EngineSettings, WorkerSettings, LogSettings)
EXPORTER_GROUPS: tuple[type[Group], ...] = (QueueSettings, ExporterSettings, LogSettings)
GATEWAY_GROUPS: tuple[type[Group], ...] = (QueueSettings, GatewaySettings, LogSettings)
GROUPS: tuple[type[Group], ...] = (
    QueueSettings,
    EngineSettings,
    WorkerSettings,
    ExporterSettings,
    GatewaySettings,
    LogSettings,
)


def load_all(**given: Any) -> tuple[QueueSettings, EngineSettings, WorkerSettings, LogSettings]:
    """Load all groups of a worker; each given value goes to the group with a field of its name.

    Raises:
        SettingsError: one line for each wrong setting of any group.
    """
    queue, engine, worker, logs = _load_together(WORKER_GROUPS, given)
    return cast("tuple[QueueSettings, EngineSettings, WorkerSettings, LogSettings]", (queue, engine, worker, logs))


def load_for_exporter(**given: Any) -> tuple[QueueSettings, ExporterSettings, LogSettings]:
    """Load all groups of the exporter. Raises like `load_all`."""
    queue, exporter, logs = _load_together(EXPORTER_GROUPS, given)
    return cast("tuple[QueueSettings, ExporterSettings, LogSettings]", (queue, exporter, logs))


def load_for_gateway(**given: Any) -> tuple[QueueSettings, GatewaySettings, LogSettings]:
    """Load all groups of the gateway. Raises like `load_all`."""
    queue, gateway, logs = _load_together(GATEWAY_GROUPS, given)
    return cast("tuple[QueueSettings, GatewaySettings, LogSettings]", (queue, gateway, logs))


def _load_together(groups: tuple[type[Group], ...], given: dict[str, Any]) -> list[Group]:
    loaded: list[Group] = []
    wrong: list[str] = []
    for group in groups:
        try:
            loaded.append(load(group, **{name: value for name, value in given.items() if name in group.model_fields}))
        except SettingsError as error:
            wrong.append(str(error))
    if wrong:
        raise SettingsError("\n".join(wrong))
    return loaded


def unknown_variables() -> dict[str, str]:
    """Environment variables with the settings' prefix that are none, each with the nearest setting or an empty text."""
    fields = [(name, field) for group in GROUPS for name, field in group.model_fields.items()]
    known = [known for name, field in fields for known in (variable(name), *file_variables(name, field, PREFIX))]
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    return {name: next(iter(difflib.get_close_matches(name, known, n=1)), "") for name in unknown}

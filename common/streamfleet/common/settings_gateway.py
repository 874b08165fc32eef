"""The settings of `streamfleet gateway`, in the groups that its parts take."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import check_name
from streamfleet.common.settings_queue import Group

_ORIGIN = re.compile(r"\*|https?://[^\s/?#]+")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://.*")


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


T = TypeVar("T")
Listed = Annotated[tuple[T, ...], NoDecode, BeforeValidator(_split)]
"""Values with commas between."""


class WebhookSettings(Group):
    """Webhooks of `streamfleet gateway`: allowed addresses, attempts and limits."""

    gateway_webhooks_allow_private: bool = Field(
        False,
        description="Callback URLs may lead to private and loopback addresses.",
    )
    gateway_webhooks_allow_http: bool = Field(False, description="Callback URLs may be http://, unencrypted.")
    gateway_webhooks_ports: Listed[int] = Field(
        (80, 443), description="Ports of callback URLs, with commas between; 0 for any."
    )
    gateway_webhooks_limit: int = Field(
        10_000,
        ge=1,
        description="Most webhooks outstanding, a quarter of them of one tenant; others are refused.",
    )

    @field_validator("gateway_webhooks_ports")
    @classmethod
    def _usable_webhook_ports(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or not all(0 <= port <= 65_535 for port in value):
            raise ValueError("must be ports such as 80,443, or 0 for any")
        return value


class BatchSettings(Group):
    """Files, batches and the simple service of `streamfleet gateway`."""

    gateway_files: str = Field(
        "file://~/.local/share/streamfleet/files",
        description=(
            "Store of files: a URL of fsspec that all gateways reach, as file:///var/lib/streamfleet or "
            "s3://bucket/folder."
        ),
    )
    gateway_file_max_bytes: int = Field(1_073_741_824, ge=1_024, description="Largest file, in bytes.")
    gateway_file_ttl_ms: int = Field(
        2_592_000_000, ge=60_000, description="How long files, and batches that have ended, are kept, in ms."
    )
    gateway_file_bytes_per_tenant: int = Field(0, ge=0, description="Most bytes of all files of a tenant; 0 for any.")
    gateway_batches_at_once: int = Field(
        8, ge=0, description="Batches that a gateway runs at once; others wait. 0: this one runs none."
    )
    gateway_batch_tokens_per_tenant: int = Field(
        0,
        ge=0,
        description=(
            "Most tokens of the inputs of a tenant's batches that have not ended, at four bytes each; 0 for any."
        ),
    )

    @field_validator("gateway_files")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        if not _URL.fullmatch(value):
            raise ValueError(f"must be a URL such as file:///var/lib/streamfleet or s3://bucket/folder, not {value!r}")
        return value


class ModelRoute(NamedTuple):
    """Route of a model's requests to a queue.

    Attributes:
        model: the model's name for callers.
        queue: queue whose workers answer.
        served: the model's name for these workers.
    """

    model: str
    queue: str
    served: str


def read_route(text: str) -> ModelRoute:
    """Parse ``NAME=QUEUE``, or ``NAME=QUEUE=SERVED`` if workers know the model by another name.

    Raises:
        ValueError: the text has another form, or the queue's name is not usable.
    """
    model, *rest = (part.strip() for part in text.split("="))
    if not model or not 1 <= len(rest) <= 2 or not all(rest):
        raise ValueError(
            f"must be MODEL=QUEUE or MODEL=QUEUE=NAME-THAT-WORKERS-KNOW, with commas between, not {text!r}"
        )
    try:
        check_name(rest[0], "queue", forbidden="{}")
    except InvalidRequest as error:
        raise ValueError(f"queue {rest[0]!r} {error.message}") from None
    return ModelRoute(model, rest[0], rest[-1] if len(rest) == 2 else model)


class GatewaySettings(BatchSettings, WebhookSettings):
    """`streamfleet gateway`: OpenAI's API over HTTP."""

    gateway_host: str = Field("127.0.0.1", description="Where the gateway listens; 0.0.0.0 in a container.")
    gateway_port: int = Field(8080, ge=0, le=65_535, description="Its port; 0 picks a free one.")
    gateway_health_port: int = Field(
        8081,
        ge=0,
        le=65_535,
        description="Port of its probes and metrics; 0 picks a free one.",
    )
    gateway_processes: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that serve that port together, at most one for each core; 1 on Kubernetes.",
    )
    gateway_models: Listed[str] = Field(
        (),
        description=(
            "MODEL=QUEUE with commas between, or MODEL=QUEUE=NAME where workers know it by another name. Empty: what "
            "the workers of STREAMFLEET_QUEUE serve."
        ),
    )
    gateway_keys: Literal["on", "off"] = Field(
        "on", description="off: whoever reaches the gateway may use it, in all lanes. For a trusted network only."
    )
    gateway_requests_per_minute: int = Field(
        0, ge=0, description="Most requests a minute with a key that names no limit of its own; 0 for any number."
    )
    gateway_tokens_per_minute: int = Field(
        0, ge=0, description="Most tokens a minute, prompts and answers, with such a key; 0 for any number."
    )
    gateway_deadline_ms: int = Field(
        600_000, ge=1, description="Deadline of a request whose caller names none, from its arrival, in ms."
    )
    gateway_max_wait_ms: int = Field(
        3_600_000, ge=1_000, description="Latest deadline that a caller may name, so longest wait for an answer, in ms."
    )
    gateway_early_space: Literal["on", "off"] = Field(
        "off",
        description=(
            "on: an answer without stream begins with white space after 50 s, for proxies that cut silent connections; "
            "an error after that is a cut connection."
        ),
    )
    gateway_store_responses: Literal["on", "off"] = Field(
        "on", description="off: a response is stored only where its caller sends `store: true`."
    )
    gateway_origins: Listed[str] = Field(
        (), description="Origins whose pages may call from a browser (CORS), with commas between; * for all."
    )
    gateway_ui: Literal["on", "off"] = Field(
        "on", description="off: no page /ui. It asks for an operator's API key, unless keys are off."
    )
    gateway_ui_redis_url: SecretStr = Field(
        SecretStr(""),
        description=("The same Redis with a user of the role operator, for the page /ui alone. Empty: REDIS_URL."),
    )
    gateway_max_connections: int = Field(
        4_096,
        ge=1,
        description="Most connections at once: the longest idle one is closed for a new one; where none is, a 503.",
    )
    gateway_max_held_bytes: int = Field(
        268_435_456,
        ge=1_048_576,
        description=(
            "Most bytes of request bodies, and of large answers, that are held at once; beyond it a 503. One tenant "
            "has at most half of it, then a 429."
        ),
    )
    gateway_keep_alive_s: int = Field(
        75, ge=1, description="How long a connection without a request is kept; longer than a load balancer does."
    )
    gateway_drain_ms: int = Field(
        25_000, ge=0, description="After SIGTERM, how long answers may still take before callers are told to ask again."
    )

    @field_validator("gateway_models")
    @classmethod
    def _usable_models(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [read_route(text).model for text in value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"model {twice!r} stands there twice")
        return value

    @field_validator("gateway_origins")
    @classmethod
    def _usable_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        wrong = next((text for text in value if not _ORIGIN.fullmatch(text)), None)
        if wrong is not None:
            raise ValueError(f"must be * or origins such as https://app.example.com, not {wrong!r}")
        return value

    @property
    def routes(self) -> tuple[ModelRoute, ...]:
        """`gateway_models`, parsed."""
        return tuple(map(read_route, self.gateway_models))

"""The settings of `streamfleet gateway`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from streamfleet.common.errors import InvalidRequest
from streamfleet.common.protocol import check_name
from streamfleet.common.settings_gateway_batches import BatchSettings
from streamfleet.common.settings_webhooks import WebhookSettings

_ORIGIN = re.compile(r"\*|https?://[^\s/?#]+")


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
        description="Port of its probes and metrics, which callers' connections cannot fill up; 0 picks a free one.",
    )
    gateway_models: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description=(
            "Models and their queues, MODEL=QUEUE with commas between, or MODEL=QUEUE=NAME where workers know it by "
            "another name. Empty: the models that the workers of STREAMFLEET_QUEUE say they serve."
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
    gateway_on_disconnect: Literal["cancel", "continue"] = Field(
        "cancel",
        description="What becomes of a request whose caller leaves. One with an Idempotency-Key always goes on.",
    )
    gateway_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Origins whose pages may call from a browser (CORS), with commas between; * for all."
    )
    gateway_ui: Literal["on", "off"] = Field(
        "on", description="off: no page /ui. It asks for an operator's API key, unless keys are off."
    )
    gateway_ui_redis_url: SecretStr = Field(
        SecretStr(""),
        description=(
            "The same Redis with another user, for the page /ui alone: it needs the role operator, which a gateway "
            "should not have. Empty: REDIS_URL."
        ),
    )
    gateway_max_connections: int = Field(4_096, ge=1, description="Most connections at once; others get a 503.")
    gateway_max_headers: int = Field(128, ge=16, description="Most headers of one request.")
    gateway_max_header_bytes: int = Field(
        32_768, ge=1_024, le=1_048_576, description="Largest path and headers of one request together, in bytes."
    )
    gateway_max_held_bytes: int = Field(
        268_435_456,
        ge=1_048_576,
        description=(
            "Most bytes of request bodies that are held at once, while they are read and put into a queue; others get "
            "a 503. One tenant has at most half of it; then it gets a 429."
        ),
    )
    gateway_head_timeout_s: float = Field(
        10.0, gt=0, description="How long the headers of a request may take to arrive, in seconds."
    )
    gateway_body_timeout_s: float = Field(
        60.0, gt=0, description="How long the body of a request may take to arrive, in seconds."
    )
    gateway_write_timeout_s: float = Field(
        30.0, gt=0, description="How long a caller may take no byte of an answer, in seconds; then it is cut off."
    )
    gateway_keep_alive_s: int = Field(
        75, ge=1, description="How long a connection without a request is kept; longer than a load balancer does."
    )
    gateway_keep_alive_comment_s: float = Field(
        15.0, gt=0, description="A stream without tokens gets a comment so often, in seconds: proxies cut silent ones."
    )
    gateway_drain_ms: int = Field(
        25_000, ge=0, description="After SIGTERM, how long answers may still take before callers are told to ask again."
    )

    @field_validator("gateway_models", "gateway_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

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

"""The settings of the gateway's webhooks."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

from streamfleet.common.settings_group import Group

DELAYS_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Waits between attempts that the Standard Webhooks specification suggests: ten attempts over about three days."""


class WebhookSettings(Group):
    """Webhooks of `streamfleet gateway`: allowed addresses, attempts and limits."""

    gateway_webhooks_allow_private: bool = Field(
        False,
        description="Whether callback URLs may lead to private and loopback addresses. Link-local addresses and those "
        "of cloud metadata services are refused in any case.",
    )
    gateway_webhooks_allow_http: bool = Field(False, description="Whether callback URLs may be http://, unencrypted.")
    gateway_webhooks_ports: Annotated[tuple[int, ...], NoDecode] = Field(
        (80, 443), description="Ports of callback URLs, with commas between; 0 for any."
    )
    gateway_webhooks_delays_s: Annotated[tuple[float, ...], NoDecode] = Field(
        DELAYS_S,
        description="Seconds between the attempts of a webhook, with commas between; up to a fifth is added by chance. "
        "There is one attempt more than delays.",
    )
    gateway_webhooks_life_ms: int = Field(
        432_000_000, ge=1_000, description="No attempt is made so long after the event, in ms, whatever the delays."
    )
    gateway_webhooks_timeout_s: float = Field(
        20.0, gt=0, le=300, description="How long one attempt may take, looking up the name included, in seconds."
    )
    gateway_webhooks_concurrency: int = Field(128, ge=1, description="Most attempts at once in one gateway process.")
    gateway_webhooks_per_host: int = Field(
        4, ge=1, description="Most attempts at once at one host: a slow receiver holds up no others."
    )
    gateway_webhooks_limit: int = Field(
        10_000,
        ge=1,
        description="Most webhooks outstanding, a quarter of them of one tenant; others are refused.",
    )
    gateway_webhooks_lease_ms: int = Field(
        60_000, ge=100, description="A delivery whose gateway died goes to another one so long after, in ms."
    )
    gateway_webhooks_remember_ms: int = Field(
        86_400_000, ge=1_000, description="How long an ended webhook's event is not announced again, in ms."
    )
    gateway_webhooks_dead_cap: int = Field(10_000, ge=1, description="About how many dead webhooks are kept.")
    gateway_webhooks_dead_ttl_ms: int = Field(
        604_800_000, ge=1_000, description="How long dead webhooks are kept, in ms."
    )

    @field_validator("gateway_webhooks_ports", "gateway_webhooks_delays_s", mode="before")
    @classmethod
    def _split_webhook_lists(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("gateway_webhooks_ports")
    @classmethod
    def _usable_webhook_ports(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or not all(0 <= port <= 65_535 for port in value):
            raise ValueError("must be ports such as 80,443, or 0 for any")
        return value

    @field_validator("gateway_webhooks_delays_s")
    @classmethod
    def _usable_webhook_delays(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(value) > 100 or not all(0 <= delay <= 31_536_000 for delay in value):
            raise ValueError("must be up to 100 numbers of seconds such as 5,300,1800")
        return value

    @model_validator(mode="after")
    def _lease_outlasts_an_attempt(self) -> Self:
        # An attempt starts in the first half of its lease, and must end before the lease does.
        if self.gateway_webhooks_lease_ms < 2_000 * self.gateway_webhooks_timeout_s + 100:
            raise ValueError(
                "STREAMFLEET_GATEWAY_WEBHOOKS_LEASE_MS must be more than twice STREAMFLEET_GATEWAY_WEBHOOKS_TIMEOUT_S: "
                "an attempt under way would be given to another gateway"
            )
        return self

"""Tenants of a queue, as commands and metrics show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from streamfleet.common.broker.types import TenantRule
from streamfleet.operator.broker.audit import TenantAudit

if TYPE_CHECKING:
    from streamfleet.operator.broker import OperatorBroker

MOST_SHOWN, OTHER = 50, "other"


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant, or all others together.

    Attributes:
        tenant: its name; empty for requests that give none.
        weight, max_running: its share beside others', and how many of its requests may run at once; None for no limit.
        key: id of the API key that names weight and limit; empty if an operator has set them, or nobody.
        waiting, running: its requests that are ready, and those that run.
        requests, missed: those that workers have ended, and those that have expired.
        tokens, in_flight, lost: settled ones; charged by estimate; of runs that were lost with their workers.
    """

    tenant: str
    weight: float = 1.0
    max_running: int | None = None
    key: str = ""
    waiting: int = 0
    running: int = 0
    requests: int = 0
    missed: int = 0
    tokens: int = 0
    in_flight: int = 0
    lost: int = 0


async def read_tenants(broker: OperatorBroker) -> list[TenantView]:
    """The tenants with most tokens, then "other" for the rest."""
    audits = (await broker.audit()).tenants
    rules = await broker.tenant_rules()
    views = [_view(name, audits.get(name, TenantAudit()), rules) for name in {*audits, *rules}]
    views.sort(key=lambda view: (view.tenant == OTHER, -view.tokens - view.in_flight, view.tenant))
    named = [view for view in views if view.tenant != OTHER]
    waiting = await broker.tenants_waiting([view.tenant for view in named[:MOST_SHOWN]])
    shown = [replace(view, waiting=waiting[view.tenant]) for view in named[:MOST_SHOWN]]
    rest = [view for view in views if view.tenant == OTHER] + named[MOST_SHOWN:]
    if not rest:
        return shown
    counts = ("running", "requests", "missed", "tokens", "in_flight", "lost")
    other = TenantView(OTHER, **{name: sum(getattr(view, name) for view in rest) for name in counts})
    return [*shown, replace(other, waiting=await broker.waiting_in_turns() - sum(waiting.values()))]


def _view(name: str, audit: TenantAudit, rules: Mapping[str, TenantRule]) -> TenantView:
    rule = rules.get(name, TenantRule())
    return TenantView(
        name,
        rule.weight,
        rule.max_running,
        rule.key,
        running=audit.running,
        requests=audit.requests,
        missed=audit.missed,
        tokens=audit.tokens,
        in_flight=audit.outstanding,
        lost=audit.lost,
    )

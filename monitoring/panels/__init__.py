"""The dashboards for Grafana. Every panel says in one sentence what it shows."""

from __future__ import annotations

from monitoring.panels.broker import BROKER
from monitoring.panels.fleet import FLEET
from monitoring.panels.gateway import GATEWAY
from monitoring.panels.lane import LANE_IN_DEPTH
from monitoring.panels.worker import WORKER

__all__ = ["DASHBOARDS"]

DASHBOARDS = (FLEET, LANE_IN_DEPTH, WORKER, BROKER, GATEWAY)

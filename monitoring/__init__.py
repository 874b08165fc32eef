"""How a fleet is watched: alert rules, dashboards, and a run of both against a real Prometheus."""

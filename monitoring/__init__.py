"""Monitoring of a fleet: alert rules, dashboards, and a run of both against a real Prometheus."""

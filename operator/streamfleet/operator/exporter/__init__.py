"""The exporter: serves a queue's metrics to Prometheus, independent of its workers.

Order of a scrape: `endpoint` serves it and reads Redis or reuses a recent read, `view` computes numbers, `families`
turns them into metrics.
"""

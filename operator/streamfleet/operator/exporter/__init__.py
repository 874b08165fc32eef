"""The exporter: serves a queue's metrics to Prometheus, independent of its workers.

Order of a scrape: `endpoint` serves it, `reader` reads Redis or reuses a recent read, `view` computes numbers with the
help of `pressure`, `families` turns them into metrics.
"""

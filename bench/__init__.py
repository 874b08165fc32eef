"""Measurements of streamfleet beside its peers and beside raw limits, in the same run.

docs/performance.md shows them.
"""

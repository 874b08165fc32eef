"""The `streamfleet` command: the one place that knows both producers and workers."""

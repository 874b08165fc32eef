"""The `streamfleet` command: the only package that imports both producers and workers."""

"""Common parts of all measurements: interleaved samples, reports on disk, targets, servers and workers to measure."""

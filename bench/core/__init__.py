"""What all measurements share: samples in turn, reports on disk, targets, servers and workers to measure."""

"""Code that producers and workers share: the wire protocol, key names, the broker, settings, logs and metrics."""

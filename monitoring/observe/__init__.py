"""Every panel and alert rule, asked of a real Prometheus that scrapes a real fleet under load."""

"""The exporter: what a queue looks like from outside its workers, for Prometheus.

A scrape goes from top to bottom: `endpoint` serves it, `looker` looks at Redis unless somebody just did, `view` makes
numbers of what was found with the help of `pressure`, `families` makes metrics of the numbers.
"""

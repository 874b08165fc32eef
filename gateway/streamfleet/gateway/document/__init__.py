"""The OpenAPI document: requests and answers of every operation, for people, generators and tests. Pure.

Routes describe themselves with `operations`, by the schemas in `schemas`; `document` puts all of it together.
"""

"""The OpenAPI document: what each operation takes and answers, for people, generators and tests. Pure."""

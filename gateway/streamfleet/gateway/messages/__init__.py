"""Anthropic's Messages API: what its clients send goes to workers as it is, and comes back in its form.

`translation` has the tables of what differs, `batches` the endpoints of message batches; `inference` has the others.
"""

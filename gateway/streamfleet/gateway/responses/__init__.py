"""Stored responses: a record of each in Redis, long texts in the store of files, chains of them, and their ends.

`service` writes and reads them for a process; `routes` answers callers about them. `inference` asks `service` when a
response is enqueued and when it has ended.
"""

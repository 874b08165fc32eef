"""OpenAI's Files API. `store` holds the contents of files; Redis holds their records.

`routes` answers callers, `upload` receives a form, and `files` keeps contents and records together. Batches read their
input and write their results through `files` too.
"""

"""The page /ui, where operators watch queues and act on them.

`routes` answers the page's requests with JSON from the other modules here. The page talks to Redis through `session`,
as a Redis user of its own if the settings name one.
"""

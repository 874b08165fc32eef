"""OpenAI's Files API. What is in a file is stored by `store`; which files there are stands in Redis."""

"""OpenAI's Files API. `store` holds the contents of files; Redis holds their records."""

"""The simple service: prompts in, outputs out, at once (`sync`) or later (`jobs`, which are batches of their own)."""

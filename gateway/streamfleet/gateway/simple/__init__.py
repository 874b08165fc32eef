"""The simple service: prompts in, outputs out, either at once (`sync`) or later, as a batch.

`reading` and `prompts` check the call's body, and `prompts` shows results; `routes` answers.
"""

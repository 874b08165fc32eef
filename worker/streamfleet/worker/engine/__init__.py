"""Engines: what turns one OpenAI-shaped request into one OpenAI-shaped answer.

Nothing is imported here: vLLM loads `orphan_guard` in each of its processes, and that must stay cheap.
"""

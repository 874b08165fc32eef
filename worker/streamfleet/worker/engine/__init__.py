"""Engines: each turns one OpenAI-shaped request into one OpenAI-shaped answer.

This file imports nothing: vLLM loads `orphan_guard` in each of its processes, and that must stay cheap.
"""

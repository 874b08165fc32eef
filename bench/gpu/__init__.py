"""Proof on a GPU: the worker with vLLM in its process, its speed beside bare vLLM, and streams through the gateway.

`python -m bench.gpu` runs the pieces of `bench.gpu.pieces` that fit into its minutes, and writes each result at once.
"""

"""Capacity planning: from a measured engine, what arrives and when it is due, to the number of workers.

Measuring goes `measure` (waves of requests through a live queue), `fit` (a profile of the waves), `profile` (its file).
Planning goes `arrivals` (Poisson, or a recorded trace), `simulate` (a fleet in virtual time, whose order is `lanes` and
whose workers are `batch`), `figures` (what came of it), `size` (the smallest fleet that is good enough), `view`.
All but `measure`, `profile` and `view` is pure.
"""

"""Capacity planning: computes the number of workers from a measured engine, the arrivals and their deadlines.

Measuring: `measure` (waves of requests through a live queue), `fit` (a profile from the waves), `profile` (its file).
Planning: `arrivals` (Poisson, or a recorded trace), `simulate` (a fleet in virtual time; `lanes` orders the requests,
`batch` is a worker), `figures` (results), `size` (the smallest sufficient fleet), `view` (output).
All modules except `measure`, `profile` and `view` are pure.
"""

"""One module a picture, each drawn from a saved report alone; `bench.plots.catalogue` lists them."""

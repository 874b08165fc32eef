"""One module for each picture, drawn from a saved report alone; `bench.plots.catalogue` lists them."""

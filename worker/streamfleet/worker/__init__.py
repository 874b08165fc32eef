"""The worker: takes requests from a queue, runs them on its engine, publishes one result for each."""

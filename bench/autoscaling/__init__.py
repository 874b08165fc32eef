"""A simulated day of bursty traffic under several ways to choose the number of workers. No Redis, no engine."""

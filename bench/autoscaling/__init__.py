"""A simulated day of bursty traffic under several ways to choose how many workers there are. No Redis, no engine."""

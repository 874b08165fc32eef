"""Checks of `streamfleet doctor`: the server, the user's permissions, the clocks, and the queue."""

"""What `streamfleet doctor` looks at: the server, who we are to it, the clocks, and the queue."""

"""Commands that send requests and print results: enqueue, result, cancel, batch."""

"""Services of the housekeeper: soft state of a queue, kept up by plain commands.

A service reads the queue's keys and decides. What must be atomic is a script, which is told what was found and checks
it again. All state is in Redis, because the next turn may be another worker's. Without a service, requests go on by
what is known of them, at worst by their deadlines, and none is lost.
"""

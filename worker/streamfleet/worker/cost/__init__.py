"""Cost rules of one request: each module judges one kind of demand, in time linear in the size of the body."""

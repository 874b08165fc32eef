"""What one request may cost: each module judges one kind of wish, in time linear in the size of the body."""

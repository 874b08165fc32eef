"""Work goes where its cache is: measurements of prompt tokens that engines take from their prefix caches."""

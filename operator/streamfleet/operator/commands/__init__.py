"""Operators' commands of the `streamfleet` command line. Each imports what it needs when it runs."""

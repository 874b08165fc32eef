"""`python -m streamfleet.cli` is the `streamfleet` command."""

from streamfleet.cli.main import main

# vLLM spawns its processes, and each imports this module again.
if __name__ == "__main__":
    main()

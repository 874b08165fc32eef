"""`python -m streamfleet.worker`: runs one worker; the environment holds all its settings."""

from __future__ import annotations

import sys

from streamfleet.common.errors import SettingsError
from streamfleet.common.settings import load_all
from streamfleet.worker.main import run_worker

EXIT_WRONG_SETTINGS = 2


def main() -> int:
    """Returns the exit status. Wrong settings are printed to the error output, one line for each."""
    try:
        return run_worker(*load_all())
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_WRONG_SETTINGS


if __name__ == "__main__":
    sys.exit(main())

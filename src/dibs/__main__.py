"""``python -m dibs`` is the command `dibs`."""

import sys

from dibs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m fedrun`: see `python -m fedrun --help`."""

import sys

from fedrun.cli import main

if __name__ == "__main__":
    sys.exit(main())

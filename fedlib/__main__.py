"""`python -m fedlib`: see `python -m fedlib --help`."""

import sys

from fedlib.cli import main

if __name__ == "__main__":
    sys.exit(main())

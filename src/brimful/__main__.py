"""``python -m brimful``, and the command that is installed."""

import sys

from brimful.cli.main import main
from brimful.process.quick_imports import leave_behind, own_process


def run() -> int:
    """Run the command line in a process that ends with it."""
    own_process()
    code = main()
    leave_behind()
    return code


if __name__ == "__main__":
    sys.exit(run())

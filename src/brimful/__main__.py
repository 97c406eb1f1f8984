"""``python -m brimful``."""

import sys

from brimful.cli.main import main

sys.exit(main())

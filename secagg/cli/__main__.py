"""``python -m secagg.cli`` is the ``secagg`` command."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())

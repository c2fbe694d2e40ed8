"""`python -m webnn_py`: the command line."""

from __future__ import annotations

import sys

from webnn_py.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

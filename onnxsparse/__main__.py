"""`python -m onnxsparse` is the command line."""

from __future__ import annotations

import sys

try:
    from onnxsparse.cli import main

    code = main()
except KeyboardInterrupt:  # before or after `main` could say so itself
    code = 130
sys.exit(code)

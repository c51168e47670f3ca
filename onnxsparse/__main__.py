"""`python -m onnxsparse` is the command line."""

from __future__ import annotations

import sys

from onnxsparse.cli import main

sys.exit(main())

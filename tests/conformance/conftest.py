"""Makes the cases importable as `graphs`, however pytest was started, and their assertions speak."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
pytest.register_assert_rewrite("graphs.properties")

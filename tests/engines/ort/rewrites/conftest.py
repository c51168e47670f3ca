"""Each test of a rewrite has random numbers of its own, whichever tests run before it."""

from __future__ import annotations

import zlib

import pytest

from tests.engines.ort.rewrites import numbers


@pytest.fixture(autouse=True)
def _own_numbers(request: pytest.FixtureRequest) -> None:
    numbers.restart(zlib.crc32(request.node.name.encode()))

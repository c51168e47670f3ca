"""Many small cases as one test: all of them run, and a failure lists each that fails.

    @for_each(("text", "value"), [("2:4", 0.5), ("1:4", 0.75)])
    def test_the_share_of_a_pattern(text: str, value: float) -> None: ...

It is `pytest.mark.parametrize` for cases that share nothing but a module. What has fixtures of its own in every case (a
folder, captured output), or takes long, stays a test per case.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def for_each(names: str | Sequence[str], values: Iterable[Any], ids: Any = None) -> Callable[[Test], Test]:
    """Call a test with every one of `values`; `names` and `ids` are those of `parametrize`."""
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    cases = [(value if len(keys) > 1 else (value,)) for value in values]

    if any(isinstance(value, type(pytest.param())) for case in cases for value in case):
        raise TypeError("marks and names of single cases are for parametrize")

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            wrong, skipped, last = [], [], None
            for number, case in enumerate(cases):
                try:
                    test(**fixtures, **dict(zip(keys, case)))
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except (Exception, pytest.fail.Exception) as error:
                    wrong.append(f"[{_label(ids, number, case)}] {type(error).__name__}: {error}")
                    last = error
            if wrong:
                raise AssertionError(f"{len(wrong)} of {len(cases)} cases:\n" + "\n".join(wrong)) from last
            if cases and len(skipped) == len(cases):
                pytest.skip(skipped[0])

        known = inspect.signature(test)
        left = [parameter for name, parameter in known.parameters.items() if name not in keys]
        all_cases.__signature__ = known.replace(parameters=left)  # type: ignore[attr-defined]
        return all_cases

    return decorate


def _label(ids: Any, number: int, case: Sequence[Any]) -> str:
    if callable(ids):
        return "-".join(str(ids(value)) for value in case)
    return str([*ids][number]) if ids is not None else ", ".join(f"{value!r:.80}" for value in case)

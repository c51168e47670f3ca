"""What protobuf says of a field, in the words of the installed version."""

from __future__ import annotations

from typing import Any


def repeated(field: Any) -> bool:
    """Whether a field is a list: older versions have only `label`, newer ones warn of it."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)

"""The version number, said once; pyproject.toml must agree (a test compares them)."""

__version__ = "0.1.0"

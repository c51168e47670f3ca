"""The passes: each takes an opened model and a rule, and returns what it changed or found."""

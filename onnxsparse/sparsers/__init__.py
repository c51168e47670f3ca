"""How a weight is replaced while it is trained."""

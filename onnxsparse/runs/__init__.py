"""A run: the loop that trains by a recipe, and all that it has to remember."""

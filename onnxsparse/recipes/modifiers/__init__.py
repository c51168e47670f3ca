"""The modifiers of a recipe: options and act of each one in one place; a module may hold several."""

"""Acts, which are what modifiers do at a training step, and the one interface for what is trained."""

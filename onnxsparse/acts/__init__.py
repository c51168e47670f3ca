"""What modifiers do at a step, and to what: acts, and the one interface for what is trained."""

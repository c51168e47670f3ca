"""What modifiers do to a trainee at a step."""

"""What the mathematics works on, in numpy only: parameters and their numbers."""

"""Training: what is asked is checked, trained in one loop by one of the engines, and delivered."""

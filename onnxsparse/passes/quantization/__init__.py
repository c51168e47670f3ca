"""From a float model to one with integers: the float graph made ready, what is rounded in it, and the nodes for it."""

"""Solvers: which weights of a layer are kept, and what the kept ones become, by the moments of its inputs."""

"""Reports: frozen rows, and one renderer each for the terminal and for JSON."""

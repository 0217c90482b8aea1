"""`deir sweep`: tasks, methods and seeds, as processes here or on a Ray cluster."""

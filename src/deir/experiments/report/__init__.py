"""`deir report`: curves and statistics of many runs."""

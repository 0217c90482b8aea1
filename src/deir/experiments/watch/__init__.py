"""`deir watch`: the report and the newest replay of runs, served on this machine while they go on."""

"""`deir tune`: a search for good values of options."""

"""`deir bench`: how fast, and how it compares with other packages."""

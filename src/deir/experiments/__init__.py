"""Above the product proper: figures, and what compares runs."""

"""`deir probe` and `deir distances`: the analyses of the paper."""

"""Our rewards in other people's frameworks. Each file needs its framework; nothing else in the package does."""

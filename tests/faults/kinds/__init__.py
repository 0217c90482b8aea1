"""One module for each kind of fault; each has a `KIND`."""

"""`python -m deir` is the command `deir`."""

from deir.cli import main

if __name__ == "__main__":
    main()

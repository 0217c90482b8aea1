"""The documented name of `deir.experiments.bench.sb3_comparison`."""

import tyro

from deir.experiments.bench.sb3_comparison import main

if __name__ == "__main__":
    tyro.cli(main)

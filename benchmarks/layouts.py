"""Milliseconds of a MiniGrid layout: Farama's reset and ours, in turn. Each of ours is checked to be Farama's.

python benchmarks/layouts.py [--tasks MultiRoom-N30 ...] [--layouts 20]
"""

import argparse
import time
from typing import Any

from deir.envs.minigrid import cells
from deir.envs.minigrid.catalogue import ending_of, resolve, target_of
from deir.envs.minigrid.layout_maker import LayoutMaker

TASKS = ["DoorKey-8x8", "KeyCorridorS6R3", "MultiRoom-N6", "MultiRoom-N30", "ObstructedMaze-Full"]


def measure(name: str, layouts: int) -> tuple[float, float]:
    """Mean milliseconds, Farama's and ours."""
    spec = resolve(name)
    assert spec is not None
    maker, env = LayoutMaker(spec), spec.build()
    plain: Any = env
    ending = ending_of(env)
    assert ending is not None
    maker.make(layouts)  # compiles
    theirs = ours = 0.0
    for seed in range(layouts):
        begin = time.perf_counter()
        plain.reset(seed=seed)
        between = time.perf_counter()
        layout = maker.make(seed)
        theirs, ours = theirs + between - begin, ours + time.perf_counter() - between
        same = [cells.encode(thing, target_of(plain, ending)) for thing in plain.grid.grid]
        assert layout.cells.tolist() == same, (name, seed)
    return 1e3 * theirs / layouts, 1e3 * ours / layouts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=TASKS)
    parser.add_argument("--layouts", type=int, default=20)
    args = parser.parse_args()
    print("| task | Farama, ms | ours, ms | ratio |\n|---|---|---|---|")
    for name in args.tasks:
        theirs, ours = measure(name, args.layouts)
        print(f"| {name} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.1f} |", flush=True)


if __name__ == "__main__":
    main()

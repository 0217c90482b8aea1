"""The threaded update under stress: small batches in the policy's and in the model's thread, over and over.

    python benchmarks/stress_threads.py --updates 100000
    python benchmarks/stress_threads.py --forks 200

Every round makes a trainer whose reward model learns in a thread of its own, trains it, goes on from its saved state in
a second trainer, as a resume does, and compares the result with the same rounds in one thread, bit for bit. `--forks`
does the first iterations of a resume in forks of a process that has trained already. Exits with 1 if any round differed
and with the signal's number if the process crashed; `faulthandler` then shows where every thread was.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import hashlib
import os
import sys
import time
from collections import Counter
from typing import Any

import torch

from deir.algorithm.trainer import Trainer
from deir.runs.run import configure
from deir.runs.training import make_trainer

ENVS, STEPS, BATCH, EPOCHS = 2, 64, 4, 4
UPDATES = ENVS * STEPS // BATCH * EPOCHS  # gradient steps of one iteration, in each of the two threads
ITERATIONS = 16  # of each half of a round
NAP = 0.02  # seconds between two looks at a fork


def config(seed: int, overlap: bool) -> Any:
    return configure(
        {
            "env": {"id": "DoorKey-5x5", "n_envs": ENVS, "layout_worker": False},
            "ppo": {"rollout_steps": STEPS, "minibatch_size": BATCH, "epochs": EPOCHS},
            "network": {"features": 8, "hidden": 8, "mlp": 8},
            "reward": {"minibatch_size": BATCH, "epochs": EPOCHS, "overlap": overlap, "deir": {"queue_size": 500}},
            "steps": "10M", "seed": seed, "threads": 2 if overlap else 1,
        }
    )  # fmt: skip


def digest(trainer: Trainer) -> str:
    """Of all parameters of the policy and of the reward model."""
    parts = [*trainer.policy.parameters(), *trainer.model.reward.parameters()]
    return hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in parts)).hexdigest()


def train(seed: int, overlap: bool, iterations: int, state: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    trainer = make_trainer(config(seed, overlap))
    try:
        assert trainer.overlap.overlaps == overlap, "the model has no thread of its own here"
        if state is not None:
            trainer.load_state_dict(copy.deepcopy(state))  # training goes on in what it is given
        for _ in range(iterations):
            trainer.iterate()
        return digest(trainer), trainer.state_dict()
    finally:
        trainer.close()


def whole_round(seed: int, overlap: bool) -> str:
    _, state = train(seed, overlap, ITERATIONS)
    return train(seed, overlap, ITERATIONS, state)[0]


def stress(updates: int, seeds: int) -> int:
    expected: dict[int, str] = {}
    done = rounds = differing = 0
    begin = said = time.monotonic()
    while done < updates:
        seed = rounds % seeds
        if seed not in expected:
            expected[seed] = whole_round(seed, overlap=False)
        differing += whole_round(seed, overlap=True) != expected[seed]
        rounds, done = rounds + 1, done + 2 * ITERATIONS * UPDATES
        if time.monotonic() - said > 60 or done >= updates:
            said = time.monotonic()
            print(
                f"{done:,} updates in each thread, {rounds} rounds with a resume, {differing} that differ from one "
                f"thread, {said - begin:.0f} s", flush=True,
            )  # fmt: skip
    return int(differing > 0)


def forked(forks: int) -> int:
    """The first iterations of a resume in forks of a warm process."""
    _, state = train(0, True, 2)
    expected = train(0, False, 2, state)[0]
    ends: Counter[str] = Counter()
    for count in range(1, forks + 1):
        child = os.fork()
        if child == 0:
            os._exit(0 if train(0, True, 2, state)[0] == expected else 3)
        ends[wait(child, seconds=60.0)] += 1
        if count % 10 == 0 or count == forks:
            print(f"{count} forks: {dict(ends)}", flush=True)
    return int(set(ends) != {"same bits"})


def wait(child: int, seconds: float) -> str:
    """How the child ended. The seconds are counted in naps, so that a stop of both (SIGSTOP) does not count."""
    for _ in range(int(seconds / NAP)):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return {0: "same bits", 3: "other bits"}.get(code, f"ended with code {code}")
        time.sleep(NAP)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return f"hung for {seconds:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100_000, help="gradient steps in each thread")
    parser.add_argument("--seeds", type=int, default=4, help="different rounds; more of them compare with more runs")
    parser.add_argument("--forks", type=int, default=0, help="instead: so many forks of a warm process")
    args = parser.parse_args()
    faulthandler.enable(all_threads=True)
    torch.manual_seed(0)
    return forked(args.forks) if args.forks else stress(args.updates, args.seeds)


if __name__ == "__main__":
    sys.exit(main())

"""A reward of one's own: registered, trained with, and used in a loop.

python examples/custom_reward.py [FRAMES]
"""

import sys

import torch
from torch import Tensor

import deir
from deir.algorithm.rewards.base import Context, IntrinsicReward, RewardState
from deir.algorithm.types import Rollout


class FirstSight(IntrinsicReward):
    """Pays 1 for an observation that no environment has shown before."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.seen: set[bytes] = set()

    def compute(self, rollout: Rollout, state: RewardState) -> tuple[Tensor, RewardState]:
        names = [observation.numpy().tobytes() for observation in rollout.table.distinct.cpu()]  # [U]
        new = torch.tensor([float(name not in self.seen) for name in names])
        self.seen.update(names)
        return new[rollout.next_ids.cpu()].to(rollout.valid.device) * rollout.valid, state  # [T, N]

    def extra_state(self) -> dict[str, list[str]]:  # so that a resumed run knows it too
        return {"seen": sorted(name.hex() for name in self.seen)}

    def load_extra_state(self, state: dict[str, list[str]]) -> None:
        self.seen = {bytes.fromhex(name) for name in state["seen"]}


deir.register_reward("first-sight", FirstSight)

if __name__ == "__main__":
    # From the command line the same is `deir train --method custom_reward:FirstSight`.
    run = deir.train("DoorKey-5x5", method="first-sight", steps=sys.argv[1] if len(sys.argv) > 1 else "20k")
    print("mean return", run.final["return_mean"])
    print("observations seen", len(deir.load(run.path).reward.model.reward.seen))

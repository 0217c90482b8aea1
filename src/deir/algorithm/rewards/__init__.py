"""The registry of reward methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deir.registry import Entry, Registry

if TYPE_CHECKING:  # the names and descriptions are wanted where nobody waits for PyTorch
    from deir.algorithm.rewards.base import Context, IntrinsicReward

METHODS: Registry[IntrinsicReward] = Registry(
    "method",
    "deir.algorithm.rewards.base:IntrinsicReward",
    "package.module:Class of your own, or deir.register_reward",
    {
        "deir": Entry(
            "deir.algorithm.rewards.deir", "Deir", "episodic reward from a discriminative model (this paper)"
        ),
        "noveld": Entry(
            "deir.algorithm.rewards.noveld",
            "Noveld",
            "NovelD: rise of RND's novelty, at the first visit in the episode",
        ),
        "ngu": Entry(
            "deir.algorithm.rewards.ngu", "Ngu", "NGU: unlike the episode's memory, times RND's lifelong factor"
        ),
        "rnd": Entry("deir.algorithm.rewards.rnd", "Rnd", "RND: error of predicting a fixed random network"),
        "icm": Entry(
            "deir.algorithm.rewards.icm", "Icm", "ICM: error of a forward model on an inverse model's embeddings"
        ),
        "etd": Entry(
            "deir.algorithm.rewards.etd", "Etd", "ETD: learned steps away from everything the episode has seen"
        ),
        "e3b": Entry("deir.algorithm.rewards.e3b", "E3b", "E3B: outside the ellipsoid of the episode's embeddings"),
        "ride": Entry(
            "deir.algorithm.rewards.ride", "Ride", "RIDE: change of an embedding over the root of its visits"
        ),
        "re3": Entry("deir.algorithm.rewards.re3", "Re3", "RE3: entropy of the rollout in a random encoder's features"),
        "disagreement": Entry(
            "deir.algorithm.rewards.disagreement",
            "Disagreement",
            "Disagreement: variance of an ensemble of forward models",
        ),
        "pseudo-counts": Entry(
            "deir.algorithm.rewards.pseudo_counts", "PseudoCounts", "NGU's episodic part: 1/√ of a soft count of visits"
        ),
        "none": Entry("deir.algorithm.rewards.none", "NoReward", "PPO alone, without an intrinsic reward"),
        "deir-no-mi": Entry(
            "deir.algorithm.rewards.ablations", "DeirNoMi", "Figure 6 (b): DEIR without the mutual information term"
        ),
        "deir-no-rnn-no-mi": Entry(
            "deir.algorithm.rewards.ablations",
            "DeirNoRnnNoMi",
            "Figure 6 (c): the discriminator only, without that term and the RNN",
        ),
        "deir-inverse": Entry(
            "deir.algorithm.rewards.ablations", "DeirInverse", "Figure 6 (d): an inverse model's embeddings"
        ),
        "deir-forward": Entry(
            "deir.algorithm.rewards.ablations", "DeirForward", "Figure 6 (e): a forward model's embeddings"
        ),
        "deir+rnd": Entry(
            "deir.algorithm.rewards.deir_rnd", "DeirRnd", "beyond the paper: DEIR times RND's lifelong factor"
        ),
        "deir+visits": Entry(
            "deir.algorithm.rewards.deir_visits",
            "DeirVisits",
            "beyond the paper: the root of DEIR's reward, at the first visit in the episode",
        ),
        "count": Entry(
            "deir.algorithm.rewards.count", "StateCount", "oracle: counts of the full states, where the task tells them"
        ),
    },
)


def register_reward(name: str, cls: type[IntrinsicReward], description: str = "") -> None:
    """Makes a user's class a method: `deir.train(method=name)`, `deir.make_reward(name, …)`, `deir list methods`.

    It holds for this program. A run that is loaded or resumed in another one needs it again, unless the method is named
    package.module:Class.
    """
    METHODS.register(name, cls, description)


def reward_class(name: str) -> type[IntrinsicReward]:
    """A name of the registry, or package.module:Class."""
    return METHODS.find(name)


def check_method(name: str) -> None:
    reward_class(name)


def make_reward(context: Context) -> IntrinsicReward:
    return reward_class(context.config.method)(context)

"""The registry of reward methods."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from deir.algorithm.rewards.base import Context, IntrinsicReward
from deir.errors import invalid, unknown
from deir.imports import import_named


class Method(NamedTuple):
    module: str  # imported when asked for
    cls: str
    description: str
    given: type[IntrinsicReward] | None = None  # a class registered by the program that runs


METHODS: dict[str, Method] = {
    "deir": Method("deir.algorithm.rewards.deir", "Deir", "episodic reward from a discriminative model (this paper)"),
    "noveld": Method(
        "deir.algorithm.rewards.noveld", "Noveld", "NovelD: rise of RND's novelty, at the first visit in the episode"
    ),
    "ngu": Method("deir.algorithm.rewards.ngu", "Ngu", "NGU: unlike the episode's memory, times RND's lifelong factor"),
    "rnd": Method("deir.algorithm.rewards.rnd", "Rnd", "RND: error of predicting a fixed random network"),
    "icm": Method(
        "deir.algorithm.rewards.icm", "Icm", "ICM: error of a forward model on an inverse model's embeddings"
    ),
    "none": Method("deir.algorithm.rewards.none", "NoReward", "PPO alone, without an intrinsic reward"),
    "deir-no-mi": Method(
        "deir.algorithm.rewards.ablations", "DeirNoMi", "Figure 6 (b): DEIR without the mutual information term"
    ),
    "deir-no-rnn-no-mi": Method(
        "deir.algorithm.rewards.ablations",
        "DeirNoRnnNoMi",
        "Figure 6 (c): the discriminator only, without that term and the RNN",
    ),
    "deir-inverse": Method(
        "deir.algorithm.rewards.ablations", "DeirInverse", "Figure 6 (d): an inverse model's embeddings"
    ),
    "deir-forward": Method(
        "deir.algorithm.rewards.ablations", "DeirForward", "Figure 6 (e): a forward model's embeddings"
    ),
    "deir+rnd": Method(
        "deir.algorithm.rewards.deir_rnd", "DeirRnd", "beyond the paper: DEIR times RND's lifelong factor"
    ),
    "count": Method(
        "deir.algorithm.rewards.count", "StateCount", "oracle: counts of the full states, where the task tells them"
    ),
}


def register_reward(name: str, cls: type[IntrinsicReward], description: str = "") -> None:
    """Makes a user's class a method: `deir.train(method=name)`, `deir.make_reward(name, …)`, `deir list methods`.

    It holds for this program. A run that is loaded or resumed in another one needs it again, unless the method is named
    package.module:Class.
    """
    if not name or ":" in name:
        raise invalid("name", name, "a name without a colon, such as 'surprise'")
    if name in METHODS and METHODS[name].given is None:
        raise invalid("name", name, "a name that no method of the package has")
    if not (isinstance(cls, type) and issubclass(cls, IntrinsicReward)):
        raise invalid("cls", cls, "a class derived from deir.algorithm.rewards.base.IntrinsicReward")
    text = description or (cls.__doc__ or "").strip().partition("\n")[0]
    METHODS[name] = Method(cls.__module__, cls.__qualname__, text or f"{cls.__module__}:{cls.__qualname__}", cls)


def find_method(name: str) -> Method:
    """A name of the registry, or package.module:Class."""
    module, colon, cls = name.partition(":")
    if colon:
        return Method(module, cls, name)
    if name not in METHODS:
        raise unknown("method", name, METHODS, also="package.module:Class of your own, or deir.register_reward")
    return METHODS[name]


def reward_class(name: str) -> type[IntrinsicReward]:
    method = find_method(name)
    if method.given is not None:
        return method.given
    if name in METHODS:
        module = import_module(method.module)
    else:
        module = import_named("method", f"{method.module}:{method.cls}", "package.module:Class")
    cls = getattr(module, method.cls, None)
    if not (isinstance(cls, type) and issubclass(cls, IntrinsicReward)):
        found = [
            key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, IntrinsicReward)
        ]
        raise unknown(f"method: reward class in module {method.module!r}", method.cls, found)
    return cls


def check_method(name: str) -> None:
    reward_class(name)


def make_reward(context: Context) -> IntrinsicReward:
    return reward_class(context.config.method)(context)

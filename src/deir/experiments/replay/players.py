"""The page of some agents: each plays the same layouts, and is a player on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from deir.agent import Agent
from deir.algorithm.actions import DiscreteActions
from deir.envs.base import VectorEnvs
from deir.envs.minigrid.engine import MiniGridEnvs
from deir.experiments.replay.cameras import make_camera, repeated
from deir.experiments.replay.contents import episode, number
from deir.experiments.replay.maps import map_of
from deir.experiments.replay.page import render
from deir.experiments.replay.recording import environments, generator_of, record
from deir.experiments.report.curves import task_name
from deir.experiments.report.steps import Tell, silent
from deir.experiments.report.styles import styles


@dataclass(frozen=True)
class Choices:
    """What is played, by any agent."""

    episodes: int = 3
    seed: int = 0
    env: str | None = None
    greedy: bool = False
    max_steps: int = 600
    map_episodes: int = 32


def make_page(agents: Sequence[Agent], choices: Choices, title: str | None = None, tell: Tell = silent) -> str:
    players = [make_player(agent, choices, tell) for agent in agents]
    tell_apart(players)
    tasks = list(dict.fromkeys(player["task"] for player in players))
    methods = list(dict.fromkeys(player["method"] for player in players))
    chosen = "likeliest" if choices.greedy else "sampled"
    return render(
        {
            "title": title or f"{' and '.join(methods)} on {' and '.join(tasks)}",
            "facts": f"Layouts that training has not seen (seed {choices.seed}), {chosen} actions.",
            "players": players,
        }
    )


def make_player(agent: Agent, choices: Choices, tell: Tell = silent) -> dict[str, Any]:
    shown, config = choices.episodes, agent.config
    tell(f"playing {config.method} on {choices.env or config.env.id}")
    envs = _environments(agent, choices)
    try:
        camera = make_camera(envs, shown)
        played = record(
            agent, envs, camera, envs.reset(), generator_of(choices.seed), choices.greedy, choices.max_steps
        )
    finally:
        envs.close()
    tell(f"explaining {config.method} on {choices.env or config.env.id}")
    relative = map_of(played, relative=True)
    look = styles([config.method])[config.method]
    task = task_name(asdict(replace(config.env, id=choices.env or config.env.id)))
    on_grid = isinstance(envs, MiniGridEnvs)
    return {
        "name": config.method,
        "method": config.method,
        "task": task,
        "frames": agent.progress.frames if agent.progress else None,
        "detail": f"{task}, trained for {agent.progress.frames:,} frames" if agent.progress else task,
        "color": look.color,
        "dark": look.dark,
        "mean": number(agent.reward.scale.average),
        "actions": _action_names(agent, envs),
        "episodes": [episode(agent, played, env) for env in range(shown)],
        "maps": {
            "relative": relative.data() if relative else None,
            "layout": [_layout_map(agent, choices, env) for env in range(shown)] if on_grid else None,
        },
    }


def _environments(agent: Agent, choices: Choices) -> VectorEnvs:
    """More than are shown where maps are drawn of them."""
    envs = environments(agent, choices.episodes, choices.seed, choices.env)
    if not isinstance(envs, MiniGridEnvs) or choices.map_episodes <= choices.episodes:
        return envs
    envs.close()
    return environments(agent, choices.map_episodes, choices.seed, choices.env)


def _layout_map(agent: Agent, choices: Choices, env: int) -> dict[str, Any]:
    """Many episodes on the layout of one environment."""
    envs = environments(agent, max(choices.map_episodes, env + 1), choices.seed, choices.env)
    assert isinstance(envs, MiniGridEnvs)
    try:
        envs.reset()
        observations, camera = repeated(envs, env), make_camera(envs, 0)
        played = record(
            agent, envs, camera, observations, generator_of(choices.seed + 1), choices.greedy, choices.max_steps
        )
    finally:
        envs.close()
    found = map_of(played, relative=False)
    assert found is not None
    return found.data()


def _action_names(agent: Agent, envs: VectorEnvs) -> list[str]:
    kind = agent.policy.actions
    if not isinstance(kind, DiscreteActions):
        return []
    names = envs.action_names
    return list(names) if len(names) == kind.outputs else [f"action {k}" for k in range(kind.outputs)]


def tell_apart(players: list[dict[str, Any]]) -> None:
    """Names that differ: the method, then how long it was trained, then the task, then a number."""
    for extra in (lambda p: f"{p['frames']:,} frames" if p["frames"] is not None else "", lambda p: p["task"]):
        counts = Counter(player["name"] for player in players)
        values = {extra(player) for player in players}
        for player in players:
            if counts[player["name"]] > 1 and len(values) > 1:
                player["name"] = f"{player['name']}, {extra(player)}"
    counts = Counter(player["name"] for player in players)
    for index, player in enumerate(players):
        if counts[player["name"]] > 1:
            player["name"] = f"{player['name']} ({index + 1})"

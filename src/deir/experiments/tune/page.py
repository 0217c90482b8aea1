"""What a study leaves behind: the best configuration, a table of trials, and a page with Optuna's plots."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from deir.experiments.tune.study import Plan, figure
from deir.files import as_cell, write_whole

if TYPE_CHECKING:
    import optuna

STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}td,th{padding:2px 12px;text-align:left}"
)
FEWEST_TRIALS = 4  # of a comparison between the best and all
OBJECTIVE = {"area": "mean return over the run", "final": "final return"}


def begun(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Without those that wait in the queue."""
    return [trial for trial in study.trials if trial.state.name != "WAITING"]


def _complete(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return [trial for trial in study.trials if trial.state.name == "COMPLETE"]


def write_best(study: optuna.Study, plan: Plan, path: Path) -> optuna.trial.FrozenTrial | None:
    """Configuration keys for `deir train --config`; nothing before the first trial is complete."""
    if not _complete(study):
        return None
    best = study.best_trial
    what = OBJECTIVE[plan.objective]
    header = (
        f"# Best of {len(begun(study))} trials of the study {plan.name} (trial {best.number}): "
        f"{what} {best.value:.4f}, seeds {','.join(map(str, plan.seeds))}.\n# deir train --config {path.name}\n"
    )
    write_whole(path, header + yaml.safe_dump(plan.best(best.params), sort_keys=False))
    return best


def write_trials(study: optuna.Study, plan: Plan, path: Path) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["trial", "state", "value", "reports", "last_report", "seconds", *plan.search])
    for trial in begun(study):
        reports = trial.intermediate_values
        last = reports[max(reports)] if reports else ""
        seconds = f"{trial.duration.total_seconds():.1f}" if trial.duration else ""
        value = "" if trial.value is None or trial.state.name == "PRUNED" else trial.value
        values = [trial.params.get(key, "") for key in plan.search]
        params = [as_cell(value) if isinstance(value, str) else value for value in values]
        writer.writerow([trial.number, trial.state.name.lower(), value, len(reports), last, seconds, *params])
    write_whole(path, buffer.getvalue())


def write_page(study: optuna.Study, plan: Plan, path: Path) -> None:
    """One file that opens without a network: plotly's script is inside."""
    from plotly.io import to_html

    sections, script = [], True
    for title, drawing in _figures(study, plan):
        if isinstance(drawing, str):
            sections.append(f"<h2>{html.escape(title)}</h2>\n<p>Nothing to show: {html.escape(drawing)}.</p>")
            continue
        drawing.update_layout(title=None, template="plotly_white", margin={"t": 30})
        plot = to_html(drawing, include_plotlyjs=script, full_html=False, default_height="420px")
        sections.append(f"<h2>{html.escape(title)}</h2>\n{plot}")
        script = False
    name = html.escape(plan.name)
    body = "\n".join([f"<h1>{name}</h1>", _table(study, plan), *sections])
    head = f'<meta charset="utf-8"><title>{name}</title><style>{STYLE}</style>'
    write_whole(path, f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n')


def _figures(study: optuna.Study, plan: Plan) -> list[tuple[str, Any]]:
    """Title and figure; in place of one that the trials do not allow yet, the reason."""
    from optuna import visualization as plots
    from optuna.importance import PedAnovaImportanceEvaluator

    complete, label = _complete(study), OBJECTIVE[plan.objective]
    some = "" if complete else "no trial is complete"
    reported = any(trial.intermediate_values for trial in study.trials)
    wanted: list[tuple[str, str, Callable[[], Any]]] = [
        ("Value of each trial", some, lambda: plots.plot_optimization_history(study, target_name=label)),
        (
            "Curves: pruned trials end early", "" if reported else "no trial has come to its first report",
            lambda: plots.plot_intermediate_values(study),
        ),
        ("Value against each key", some, lambda: plots.plot_slice(study, target_name=label)),
    ]  # fmt: skip
    if len(plan.search) > 1:
        constant = [key for key in plan.search if len({trial.params.get(key) for trial in complete}) < 2]
        both = some or (f"all complete trials have the same {constant[0]}" if constant else "")
        few = some or _why_no_importance(complete)
        wanted += [
            (
                "Importance of the keys", few,
                lambda: plots.plot_param_importances(study, PedAnovaImportanceEvaluator(), target_name=label),
            ),
            ("All keys", some, lambda: plots.plot_parallel_coordinate(study, target_name=label)),
            ("Two keys at a time", both, lambda: plots.plot_contour(study, target_name=label)),
        ]  # fmt: skip
    started = "" if begun(study) else "no trial has begun"
    wanted.append(("When the trials ran", started, lambda: plots.plot_timeline(study)))
    return [(title, reason or draw()) for title, reason, draw in wanted]


def _why_no_importance(complete: Sequence[optuna.trial.FrozenTrial]) -> str:
    """Importance compares the best tenth of the trials with all of them."""
    if len(complete) < FEWEST_TRIALS:
        return f"it needs {FEWEST_TRIALS} complete trials; there are {len(complete)}"
    values = sorted((trial.value or 0.0 for trial in complete), reverse=True)
    tenth = values[max(2, len(values) // 10) - 1]
    return "the trials hardly differ" if values[-1] >= tenth else ""


def _table(study: optuna.Study, plan: Plan) -> str:
    """The trials, best first."""
    complete = sorted(_complete(study), key=lambda trial: -(trial.value or 0))
    ranked = [*complete, *(trial for trial in begun(study) if trial.state.name != "COMPLETE")]
    lines = ["<table><tr>" + "".join(f"<th>{html.escape(h)}</th>" for h in ("trial", "state", "value", *plan.search))]
    for trial in ranked:
        value = f"{trial.value:.4f}" if trial.state.name == "COMPLETE" else "–"
        params = [figure(trial.params.get(key, "")) for key in plan.search]
        cells = [str(trial.number), trial.state.name.lower(), value, *params]
        lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
    return "\n".join([*lines, "</table>"])

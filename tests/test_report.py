"""`deir report`: reading runs, what is computed from them, and what is written."""

import csv
import math
import os
import shutil
import sys

import numpy as np
import pytest

from deir import cli
from deir.algorithm.rewards import METHODS
from deir.errors import UserError
from deir.experiments.report import command as report
from deir.experiments.report import page, static_figures, summary_text
from deir.experiments.report.analysis import Study
from deir.experiments.report.curves import read_all, task_name, write_table
from deir.experiments.report.figures import middle_scale
from deir.experiments.report.labels import numbers, seeds, seeds_of_all, why_no_profile
from deir.experiments.report.measures import ALL
from deir.experiments.report.styles import styles
from made_runs import STEP, make_run, make_sweep


def study_of(*places, **options):
    curves, notes = read_all(list(places), **options)
    return Study(curves, 100, notes)


def row_of(study, env, method):
    return next(row for row in study.summary if (row["env"], row["method"]) == (env, method))


def report_on(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["deir", "report", *map(str, words)])
    cli.main()


# reading


def test_a_sweeps_directories_are_the_labels(tmp_path):
    make_run(tmp_path / "DoorKey noisy" / "deir, wide" / "seed3", [0.5], {"noise": 0.1}, seed=3)
    (tmp_path / "sweep.yaml").write_text("name: x\n")
    for place in (tmp_path, tmp_path / "DoorKey noisy", tmp_path / "DoorKey noisy" / "deir, wide" / "seed3"):
        (curve,), _ = read_all([place])
        assert (curve.env, curve.method, curve.seed) == ("DoorKey noisy", "deir, wide", 3)


def test_elsewhere_the_configuration_gives_the_labels(tmp_path):
    make_run(tmp_path / "methods" / "variant" / "seed1", [0.5], {"noise": 0.1, "n_envs": 4}, "rnd", 1)
    (curve,), _ = read_all([tmp_path])
    assert (curve.env, curve.method, curve.seed) == ("DoorKey-8x8 noise=0.1", "rnd", 1)
    (curve,), _ = read_all([tmp_path], by_directory=True)
    assert (curve.env, curve.method) == ("DoorKey-8x8 noise=0.1", "variant")


def test_a_task_is_named_with_whatever_makes_it_another_task():
    env = {"id": "A", "view_size": 3, "invisible_obstacles": True, "noise": 0.0, "layout_worker": False}
    assert task_name(env) == "A view_size=3 invisible_obstacles=true"


def test_a_torn_last_line_is_not_a_point_and_an_empty_run_is_left_out(tmp_path):
    path = make_run(tmp_path / "a", [0.1, 0.2])
    with (path / "progress.csv").open("a") as file:
        file.write("3,30")
    empty = make_run(tmp_path / "b", [0.1], seed=1)
    (empty / "progress.csv").write_text((empty / "progress.csv").read_text().splitlines()[0] + "\n")
    (curve,), notes = read_all([tmp_path])
    assert curve.frames.tolist() == [STEP, 2 * STEP]
    assert len(notes) == 1 and str(empty) in notes[0]


def test_a_table_of_curves_gives_the_same_report(tmp_path):
    study = study_of(make_sweep(tmp_path / "runs"))
    write_table(study.curves, tmp_path / "curves.csv")
    again = study_of(tmp_path / "curves.csv")
    assert again.notes == study.notes
    np.testing.assert_equal(again.summary, study.summary)
    write_table(again.curves, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "curves.csv").read_text()


def test_of_one_run_in_two_places_the_longer_one_counts(tmp_path):
    long, short = [0.1, 0.2, 0.3], [0.1, 0.2]
    make_run(tmp_path / "new", long)
    make_run(tmp_path / "old", short)
    (curve,), notes = read_all([tmp_path / "old", tmp_path / "new"])
    assert curve.last == 3 * STEP and not notes  # the same run, gone on
    make_run(tmp_path / "other", [0.7, 0.7])
    (curve,), notes = read_all([tmp_path])
    assert curve.last == 3 * STEP and len(notes) == 1 and "other" in notes[0]


def test_runs_of_one_method_with_several_configurations_are_said_to_be_so(tmp_path):
    make_run(tmp_path / "a", [0.1])
    path = make_run(tmp_path / "b", [0.1], seed=1)
    (path / "config.yaml").write_text((path / "config.yaml").read_text().replace("beta: 0.01", "beta: 0.02"))
    _, notes = read_all([tmp_path])
    assert len(notes) == 1 and "reward.beta" in notes[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n", "no column"),
        ("env,method,seed,frames,seconds,return_mean\nA,deir,x,1,1,0\n", "seed"),
        ("env,method,seed,frames,seconds,return_mean\nA,deir,0,1,1,much\n", "much"),
        ("env,method,seed,frames,seconds,return_mean\nA,deir,0,2,1,0\nA,deir,0,1,2,0\n", "rise"),
    ],
)
def test_a_wrong_table_is_refused_in_a_sentence(tmp_path, text, complaint):
    (tmp_path / "curves.csv").write_text(text)
    with pytest.raises(UserError, match=complaint):
        read_all([tmp_path / "curves.csv"])


def test_no_runs_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match=r"runs: got .*progress\.csv"):
        read_all([tmp_path])
    with pytest.raises(UserError, match="missing"):
        read_all([tmp_path / "missing"])


# computing


def test_the_summary_of_straight_lines(tmp_path):
    lines = {0: np.linspace(0.01, 1.0, 100), 1: np.linspace(0.0, 0.99, 100)}
    for seed, line in lines.items():
        make_run(tmp_path / f"seed{seed}", line.tolist(), seed=seed)
    row = row_of(study_of(tmp_path), "DoorKey-8x8", "deir")
    finals = [0.955, 0.945]  # of the last ten points
    assert row["final_mean"] == pytest.approx(0.95)
    assert row["final_stderr"] == pytest.approx(np.std(finals, ddof=1) / 2**0.5)
    assert row["auc_mean"] == pytest.approx(0.5)
    assert row["episodic_mean"] == pytest.approx(0.3)
    assert row["best_return"] == pytest.approx(0.95)
    assert row["half_best_frames_median"] == 48.5 * STEP  # 0.475: the 48th and the 49th point
    assert row["return_0.9_frames_median"] == 90.5 * STEP
    assert (row["most_best_reached"], row["most_best_of"]) == (2, 2)


def test_a_few_lucky_episodes_reach_no_threshold(tmp_path):
    make_run(tmp_path, [1.0, 0.0, 0.5, 0.95, 0.95], episodes=[1, 20, 100, 150, 200])
    assert row_of(study_of(tmp_path), "DoorKey-8x8", "deir")["return_0.9_frames_median"] == 4 * STEP


def test_a_threshold_most_runs_never_reach_has_no_median(tmp_path):
    for seed, last in enumerate((0.95, 0.2, 0.3)):
        make_run(tmp_path / f"{seed}", [0.0, last], seed=seed)
    row = row_of(study_of(tmp_path), "DoorKey-8x8", "deir")
    assert (row["return_0.9_reached"], row["return_0.9_of"]) == (1, 3)
    assert math.isnan(row["return_0.9_frames_median"])


def test_a_run_cut_short_is_told_and_is_in_the_curves_only(tmp_path):
    make_run(tmp_path / "a", [0.0, 0.4, 0.8])
    make_run(tmp_path / "b", [0.2, 0.6], seed=1, steps=3 * STEP)
    study = study_of(tmp_path)
    assert len(study.notes) == 1 and "seed 1" in study.notes[0] and "2,000 of 3,000" in study.notes[0]
    row = row_of(study, "DoorKey-8x8", "deir")
    assert (row["runs"], row["whole_runs"]) == (2, 1) and row["final_mean"] == pytest.approx(0.8)
    series = study.series("DoorKey-8x8", "return_mean", "frames")
    np.testing.assert_allclose(series.bands["deir"].mean, [0.1, 0.5, 0.8])
    assert series.bands["deir"].runs.tolist() == [2, 2, 1]


def test_runs_that_all_stopped_early_say_so(tmp_path):
    make_run(tmp_path, [0.1, 0.2], steps=5 * STEP)
    study = study_of(tmp_path)
    assert study.summary[0]["whole_runs"] == 1
    assert len(study.notes) == 1 and "2,000 of the 5,000" in study.notes[0]


def test_iterations_of_other_sizes_are_not_cut_short_and_meet_on_one_grid(tmp_path):
    make_run(tmp_path / "a", [0.0, 1.0, 2.0])
    make_run(tmp_path / "b", [0.0, 2.0], method="rnd", frames=[1400, 2800])
    study = study_of(tmp_path)
    assert not study.notes
    series = study.series("DoorKey-8x8", "return_mean", "frames")
    assert series.x["rnd"].tolist() == [1000, 1400, 2000, 2800, 3000]
    np.testing.assert_allclose(series.bands["deir"].mean, [0, 0.4, 1, 1.8, 2])
    np.testing.assert_allclose(series.bands["rnd"].mean, [np.nan, 0, 2 * 600 / 1400, 2, np.nan])


def test_against_time_a_point_stands_at_the_mean_time_of_its_frames(tmp_path):
    make_run(tmp_path / "a", [0.0, 0.5], seconds=2.0)
    make_run(tmp_path / "b", [0.0, 0.5], seed=1, seconds=4.0)
    series = study_of(tmp_path).series("DoorKey-8x8", "return_mean", "seconds")
    assert series.x["deir"].tolist() == [3, 6]


def test_over_tasks_returns_are_shares_of_the_best_and_only_shared_tasks_count(tmp_path):
    for task, scale in (("A", 1.0), ("B", 10.0)):
        for method, level in (("deir", 0.8), ("none", 0.4)):
            make_run(tmp_path / task / method, [level * scale] * 4, {"id": task}, method)
    make_run(tmp_path / "C", [5.0] * 4, {"id": "C"})
    make_run(tmp_path / "begun", [0.1], {"id": "A"}, "rnd")  # stops no other method from being compared
    study = study_of(tmp_path)
    assert study.shared == ["A", "B"] and study.views == [ALL, "A", "B", "C"]
    assert row_of(study, ALL, "deir")["final_mean"] == pytest.approx(1)
    assert row_of(study, ALL, "none")["final_mean"] == pytest.approx(0.5)
    assert any("C" in note and ALL in note for note in study.notes)
    band = study.series(ALL, "return_mean", "frames").bands["none"]
    np.testing.assert_allclose(band.mean[np.isfinite(band.mean)], 0.5)
    assert study.series(ALL, "intrinsic_reward_mean", "frames") is None


def test_a_task_without_efficiencies_has_no_such_figure(tmp_path):
    make_run(tmp_path, [0.1, 0.2], episodic_efficiency=None)
    study = study_of(tmp_path)
    assert study.series("DoorKey-8x8", "episodic_efficiency", "frames") is None
    assert math.isnan(study.summary[0]["episodic_mean"])
    assert "–" in summary_text.markdown(study)


def test_a_negative_best_return_has_no_shares(tmp_path):
    make_run(tmp_path, [-5.0, -3.0])
    study = study_of(tmp_path)
    assert study.profiles == []
    assert study.summary[0]["half_best_of"] == 0 and study.summary[0]["return_0.9_of"] == 1


def test_probabilities_and_profiles_of_separate_methods(tmp_path):
    study = study_of(make_sweep(tmp_path, seeds=5))
    found = {(r["env"], r["measure"], r["method"], r["other"]): r["probability"] for r in study.probabilities}
    assert found[ALL, "auc", "deir", "none"] == 1 and found[ALL, "auc", "none", "deir"] == 0
    assert len(found) == 3 * 2 * 6  # views, measures, ordered pairs
    first = {row["method"]: row["share"] for row in study.profiles if row["env"] == ALL and row["score"] == 0.5}
    counted = {m: [(scores > 0.5).mean() for scores in study.scores(ALL, m)] for m in study.methods}
    assert first == pytest.approx({method: sum(shares) / 2 for method, shares in counted.items()})
    assert first["deir"] == 1 and first["none"] == pytest.approx(0.2)
    assert {row["env"] for row in study.profiles} == {ALL}  # 10 runs of a method together, 5 on each task


def test_a_profile_of_few_runs_is_not_shown_and_said_why(tmp_path):
    study = study_of(make_sweep(tmp_path, seeds=4))
    assert study.profiles == []
    assert why_no_profile(study, ALL) == "a profile needs 10 whole runs of a method; here are at most 8"
    assert static_figures.draw_all(study, tmp_path, {"performance-profile"}) == []


def test_means_over_few_episodes_are_not_drawn(tmp_path):
    make_run(tmp_path / "a", [1.0, 0.5, 0.2], episodes=[1, 19, 20])
    series = study_of(tmp_path).series("DoorKey-8x8", "return_mean", "frames")
    np.testing.assert_equal(series.bands["deir"].mean, [np.nan, np.nan, 0.2])
    intrinsic = study_of(tmp_path).series("DoorKey-8x8", "intrinsic_reward_mean", "frames")
    assert np.isfinite(intrinsic.bands["deir"].mean).all()


def test_seeds_are_named_and_none_is_ppo_alone(tmp_path):
    study = study_of(make_sweep(tmp_path / "a", methods=("deir", "none")))
    assert seeds(study, "deir", study.tasks) == "seeds 0–2" and seeds_of_all(study) == "seeds 0–2"
    assert numbers([7, 0, 1, 2, 3, 5]) == "0–3, 5, 7" and numbers([4]) == "4" and numbers([0, 1]) == "0, 1"
    assert "| PPO alone |" in summary_text.markdown(study) and "| none |" not in summary_text.markdown(study)
    shutil.rmtree(tmp_path / "a" / "FourRooms" / "none" / "seed1")
    study = study_of(tmp_path / "a")
    assert seeds(study, "none", study.tasks) == "2 to 3 seeds" and seeds_of_all(study) == "2 to 3 seeds each"


def test_panels_of_a_row_share_their_height_and_an_empty_one_says_why(tmp_path):
    for task, best in (("A", 0.9), ("B", 0.2), ("C", None)):
        make_run(tmp_path / task, [best, best], {"id": task})
    figure = static_figures._curves(study_of(tmp_path), "return_mean", "frames", "mean")
    a, b, c = figure.axes
    assert a.get_ylim() == b.get_ylim()
    assert [text.get_text() for text in c.texts] == ["no run has ended 20 episodes"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["deir"]
    assert figure.get_supylabel() == "return (mean ± standard error, seed 0)"
    make_run(tmp_path / "D", [0.1, 0.2], {"id": "A"}, "none", seed=3)
    figure = static_figures._curves(study_of(tmp_path), "return_mean", "frames", "mean")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["deir, seed 0", "PPO alone, seed 3"]


def test_the_names_of_every_method_stand_inside_the_figure(tmp_path):
    study = study_of(make_sweep(tmp_path, ("DoorKey-8x8",), tuple(METHODS), 1, 4))
    figure = static_figures._curves(study, "return_mean", "frames", "mean")
    figure.canvas.draw()
    page = figure.bbox
    for text in figure.legends[0].get_texts():
        box = text.get_window_extent()
        assert page.y0 <= box.y0 and box.y1 <= page.y1 and page.x0 <= box.x0 and box.x1 <= page.x1, text.get_text()
    assert len(figure.legends[0].get_texts()) == len(METHODS)


def test_one_outlier_does_not_own_the_colours_of_a_map():
    values = np.linspace(0, 1, 100).reshape(10, 10)
    values[0, 0] = 1000
    values[9, 9] = np.nan
    assert middle_scale(values).vmax < 1.01
    assert middle_scale(np.full((2, 2), np.nan)) is None and middle_scale(np.ones((2, 2))) is None


# writing


def test_the_command_writes_everything_and_can_be_repeated(tmp_path, monkeypatch, capsys):
    make_sweep(tmp_path / "runs")
    out = tmp_path / "out"
    report_on(monkeypatch, tmp_path / "runs", "--out", out, "--no-figures", "--resamples", 100)
    assert {path.name for path in out.iterdir()} == {*report.TABLES, report.PAGE}
    assert "18 runs, 2 tasks, 3 methods" in capsys.readouterr().out
    with (out / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9 and {row["env"] for row in rows} == {ALL, "DoorKey-8x8", "FourRooms"}
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    report_on(monkeypatch, tmp_path / "runs", "--out", out, "--no-figures", "--resamples", 100)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out"}


def test_an_out_with_other_things_is_refused(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "run", [0.1, 0.2])
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("ten years of work")
    with pytest.raises(SystemExit) as stopped:
        report_on(monkeypatch, tmp_path / "run", "--out", out)
    assert stopped.value.code == 2 and "thesis.tex" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("renames", [1, 2])
def test_a_report_whose_writer_is_killed_is_the_old_one_or_the_new_one(tmp_path, monkeypatch, renames):
    """The runs may be gone by now, and its curves.csv the only copy."""
    make_run(tmp_path / "runs" / "seed0", [0.1, 0.2])
    out, table = tmp_path / "out", str(tmp_path / "out" / "curves.csv")
    report_on(monkeypatch, str(tmp_path / "runs"), "--out", str(out), "--no-figures")
    shutil.rmtree(tmp_path / "runs")
    child = os.fork()
    if child == 0:
        rename, left = os.rename, [renames]

        def dying(*args, **options):
            left[0] -= 1
            if not left[0]:
                os._exit(9)
            rename(*args, **options)

        os.rename = dying
        report_on(monkeypatch, table, "--out", str(out), "--no-figures")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    report_on(monkeypatch, table, "--out", str(out), "--no-figures")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert len(read_all([out])[0][0].frames) == 2


def test_a_report_is_not_replaced_by_one_without_its_runs(tmp_path, monkeypatch, capsys):
    for seed in (0, 1):
        make_run(tmp_path / f"run{seed}", [0.1, 0.2], seed=seed)
    out = tmp_path / "out"
    quick = ("--out", out, "--no-figures", "--resamples", 100)
    report_on(monkeypatch, tmp_path / "run0", *quick)
    with pytest.raises(SystemExit):
        report_on(monkeypatch, tmp_path / "run1", *quick)
    assert "seed 0" in capsys.readouterr().err
    report_on(monkeypatch, tmp_path / "run1", out / "curves.csv", *quick)
    assert {row.split(",")[2] for row in (out / "curves.csv").read_text().splitlines()[1:]} == {"0", "1"}


def test_a_missing_package_is_told_with_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    make_run(tmp_path / "run", [0.1])
    with pytest.raises(UserError, match=r"scipy.*pip install 'deir\[report\]'"):
        report.run(report.Report((tmp_path / "run",), tmp_path / "out"))


def test_each_kind_of_figure_is_drawn_and_drawn_alike_again(tmp_path):
    study = study_of(make_sweep(tmp_path / "runs", methods=("deir", "none"), seeds=5))
    wanted = {
        "return-frames-mean",
        "all-tasks-seconds-iqm",
        "performance-profile",
        "probability-auc",
        "frames-to-half-best",
    }
    assert set(static_figures.draw_all(study, tmp_path, wanted)) == wanted
    for name in wanted:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    before = (tmp_path / "return-frames-mean.pdf").read_bytes()
    static_figures.draw_all(study, tmp_path, {"return-frames-mean"})
    assert (tmp_path / "return-frames-mean.pdf").read_bytes() == before


def test_every_method_has_a_look_of_its_own_that_stays():
    together = styles([*METHODS, "my-variant", "another"])
    assert len({(look.color, look.dash) for look in together.values()}) == len(together)
    for name in METHODS:
        assert styles([name])[name].color == together[name].color
    assert [name for name, look in together.items() if look.emphasised] == ["deir"]


def test_labels_are_escaped_in_the_page_and_in_the_table(tmp_path):
    make_run(tmp_path, [0.1, 0.2], {"id": "<img src=x onerror=alert(1)>"}, "a|b</script><b>")
    study = study_of(tmp_path)
    html = page.render(study, "<script>alert(2)</script>")
    for text in ("<img", "</script><b>", "<script>alert(2)"):
        assert text not in html
    assert "a\\|b&lt;/script" in summary_text.markdown(study)

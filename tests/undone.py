"""Do the tests of reliability fail without what they test? Each mend is undone in a copy, and its test must then fail.

    python tests/undone.py            all, with a table at the end; half an hour of one core
    python tests/undone.py 7 8        those of items 7 and 8 of docs/reliability.md

A mend is undone by replacing one text of one file, wherever in the package that is. Exits with 1 if a test passes
without its mend, or if a text is no longer there: then say here how to undo what stands in its place.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 400  # seconds: without some of the mends a test never ends
MEMORY = 8 * 2**30  # bytes: without some of the limits a test would take all there is


class Mend(NamedTuple):
    item: int
    what: str  # what is undone, in words
    old: str
    new: str
    test: str  # file::function, and words for pytest's -k after a blank


LOST, STOP, LIMITS, PLUG = (
    f"test_{name}.py::test_" for name in ("nothing_lost", "stopping", "limits", "plug")
)  # fmt: skip
MENDS = (
    Mend(
        1,
        "more frames than steps is no mistake of a resume",
        "if shortened and config.steps < trainer.frames:",
        "if config.steps < trainer.frames:",
        f"{LOST}a_run_killed_after_its_last_checkpoint_finishes",
    ),
    Mend(
        1,
        "a signal in the last iteration lets the run end",
        "if signals and not done:  # with",
        "if signals:  # with",
        f"{LOST}a_signal_in_the_last_iteration_lets_the_run_finish",
    ),
    Mend(
        2,
        "code named by a run is refused",
        "    check_trusted(config, run.config, trust)\n",
        "",
        "test_trust.py::test_a_saved_name_of_code_is_refused",
    ),
    Mend(
        2,
        "the working directory is not first on the path (`-P`)",
        '[sys.executable, "-P", "-c"',
        '[sys.executable, "-c"',
        "test_trust.py::test_modules_in_the_working_directory_shadow_nothing_in_our_processes worker",
    ),
    Mend(
        3,
        "a study checks the configuration of runs it finds",
        "        _check_own(trial, jobs)\n",
        "",
        "test_tune.py::test_runs_of_other_parameters_are_never_taken_over",
    ),
    Mend(
        4,
        "a run begins as running",
        'if rows else None), "running"\n',
        'if rows else None), "finished"\n',
        f"{LOST}a_run_is_running_until_its_last_checkpoint_is_on_disk",
    ),
    Mend(
        4,
        "a crash is a status",
        '        status = f"failed: {type(error).__name__}: {error}"\n        raise',
        '        status = "finished"\n        raise',
        f"{LOST}a_run_that_broke_is_not_called_finished",
    ),
    Mend(
        5,
        "damaged checkpoints are set aside",
        "        checkpoint.set_aside(run.checkpoints, checkpoint.path_of(run.checkpoints, trainer.iteration))\n",
        "",
        f"{LOST}a_damaged_checkpoint_never_costs_a_good_one",
    ),
    Mend(
        6,
        "`evaluate` and `deir.load` tell of a fallback",
        "        checkpoints.tell(complaints, source)\n",
        "",
        f"{LOST}evaluate_and_load_say_that_they_use_an_older_checkpoint",
    ),
    Mend(
        7,
        "the checksum covers names, types and shapes",
        'if version > 1:\n            total = zlib.crc32(f"\\n{name}',
        'if version > 9:\n            total = zlib.crc32(f"\\n{name}',
        f"{LOST}the_checksum_covers_the_header",
    ),
    Mend(
        7,
        "any failure to read is a damaged checkpoint",
        "except Exception as error:  # a damaged file",
        "except ValueError as error:  # a damaged file",
        f"{LOST}the_checksum_covers_the_header",
    ),
    Mend(
        7,
        "counters are checked",
        "            _check_counters(found)\n",
        "",
        f"{LOST}counters_that_cannot_be_are_damage",
    ),
    Mend(
        7,
        "any failure to load a state is a fallback",
        "except Exception as error:  # a state of another network or",
        "except RuntimeError as error:  # a state of another network or",
        f"{LOST}a_state_that_cannot_be_is_one_message_and_a_fallback",
    ),
    Mend(
        8,
        "a line without all its numbers is no row",
        "    if len(cells) != len(names) or not all(map(_is_number, cells)):\n        return None\n",
        "",
        f"{LOST}a_line_that_is_no_row_is_left_out",
    ),
    Mend(
        8,
        "a torn row is told of",
        "        if self.torn:\n",
        "        if False:\n",
        f"{LOST}a_torn_last_row_is_dropped_with_a_word",
    ),
    Mend(
        8,
        "rows must be complete and contiguous",
        "if row is None or number > iteration or number != (expected or number):",
        "if row is None or number > iteration:",
        f"{LOST}holes_are_missed_where_a_checkpoint_has_no_checksum_of_its_rows",
    ),
    Mend(
        8,
        "a missing row is missed",
        '        if iteration and (not rows or int(rows[-1]["iteration"]) != iteration):\n',
        "        if False:\n",
        f"{LOST}rows_a_checkpoint_counts_and_the_log_lacks_are_made_again",
    ),
    Mend(
        8,
        "a checkpoint knows the checksum of its rows",
        'if rows and checksum and checksum != f"',
        'if False and checksum != f"',
        f"{LOST}rows_that_no_checkpoint_can_make_again_are_missed_aloud",
    ),
    Mend(
        8,
        "rows are synced before their checkpoint",
        '        with self.path.open("rb") as file:\n            os.fsync(file.fileno())\n',
        "",
        f"{LOST}rows_are_on_disk_before_the_checkpoint_that_counts_them",
    ),
    Mend(
        9,
        "files are synced",
        "            os.fsync(file.fileno())  # before the name",
        "            pass  # before the name",
        f"{LOST}rows_are_on_disk_before_the_checkpoint_that_counts_them",
    ),
    Mend(
        9,
        "folders are synced",
        "        raise\n    sync_directory(path.parent)\n",
        "        raise\n",
        f"{LOST}rows_are_on_disk_before_the_checkpoint_that_counts_them",
    ),
    Mend(
        9,
        "an unreadable summary is no traceback",
        "except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):",
        "except FileNotFoundError:",
        f"{LOST}an_unreadable_summary_means_not_finished",
    ),
    Mend(
        9,
        "a changed summary is not trusted",
        "return summary if whole and known else None",
        "return summary if known else None",
        f"{LOST}a_summary_that_was_changed_is_not_trusted",
    ),
    Mend(
        10,
        "a second process kills a worker that hangs",
        '    _start_watchdog(float(order.get("grace", GRACE)))\n',
        "",
        f"{STOP}a_hung_worker_ends_when_its_parent_does",
    ),
    Mend(
        10,
        "a sweep tells of a run without progress",
        " or run.stuck(stall)\n",
        "\n",
        f"{STOP}a_sweep_says_that_a_run_hangs_and_one_signal_ends_it",
    ),
    Mend(
        10,
        "one signal ends a sweep whose run hangs",
        "late = run.end_if_late(grace)",
        "late = None",
        f"{STOP}a_sweep_says_that_a_run_hangs_and_one_signal_ends_it",
    ),
    Mend(
        10,
        "the process of layouts ends with its parent",
        "    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()\n",
        "",
        f"{STOP}the_worker_of_layouts_ends_with_its_parent_in_the_middle_of_a_layout",
    ),
    Mend(
        11,
        "SIGHUP stops a run",
        "        signals.append(hang_up)\n",
        "        pass\n",
        f"{STOP}a_hang_up_and_a_closed_pipe_stop_a_run_with_a_checkpoint",
    ),
    Mend(
        11,
        "a closed pipe stops a run",
        "    quieten()\n    signal.raise_signal(signal.SIGTERM)\n",
        "    raise error\n",
        f"{STOP}a_hang_up_and_a_closed_pipe_stop_a_run_with_a_checkpoint",
    ),
    Mend(
        12,
        "failures of the system are one message",
        '        _end(2, f"error: {_told(failure)}")  # EIO',
        "        raise  # EIO",
        f"{STOP}failures_of_the_system_are_one_message_in_every_command",
    ),
    Mend(
        12,
        "an I/O error of a disk is no closed terminal",
        "        if failure.errno == errno.EPIPE:\n",
        "        if is_gone(failure):\n",
        f"{STOP}failures_of_the_system_are_one_message_in_every_command",
    ),
    Mend(
        12,
        "a full disk is told with the file that did not fit",
        "            error.filename = str(path)\n",
        "            pass\n",
        f"{STOP}a_full_disk_in_the_middle_of_a_run_is_one_message",
    ),
    Mend(
        12,
        "the place is tried before the work",
        '    make_writable("out", run.path)\n    trainer',
        "    trainer",
        f"{STOP}a_place_that_cannot_be_written_is_told_before_any_work",
    ),
    Mend(
        14,
        "temporary files of a killed write are removed",
        'for left in directory.glob(".*.tmp"):',
        "for left in ():",
        f"{LOST}temporary_files_of_a_killed_writer_are_removed",
    ),
    Mend(
        14,
        "files honour the umask",
        'with naming(path), temporary.open("wb", buffering=BUFFER) as file:',
        'with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:',
        f"{LOST}files_honour_the_umask",
    ),
    Mend(
        15,
        "Adam's factors are below 1",
        'lambda value: 0 <= value < 1, ("ppo.adam',
        'lambda value: 0 <= value <= 1, ("ppo.adam',
        f"{LIMITS}values_beyond_sense_are_told beta1",
    ),
    Mend(
        15,
        "devices are those that serve",
        "        if device.type not in DEVICES:\n",
        "        if False:\n",
        f"{LIMITS}values_beyond_sense_are_told meta",
    ),
    Mend(
        15,
        "numbers have largest values",
        "if isinstance(value, int) and value > most:",
        "if False:",
        f"{LIMITS}limits_are_data_of_fields_there_are",
    ),
    Mend(
        15,
        "options of commands have a range",
        "    if not least <= value <= most:\n",
        "    if False:\n",
        f"{LIMITS}values_beyond_sense_are_told video_episodes",
    ),
    Mend(
        15,
        "ranges of seeds are counted before they are made",
        "if sum(max(0, part[-1] - part[0] + 1) for part in parts) >",
        "if 0 >",
        f"{LIMITS}values_beyond_sense_are_told 99999999999",
    ),
    Mend(
        15,
        "whatever YAML raises is a message",
        "except Exception as error:  # its constructors",
        "except yaml.YAMLError as error:  # its constructors",
        f"{LIMITS}yaml_of_every_kind_is_read_or_refused_in_one_short_message",
    ),
    Mend(
        15,
        "the entries of aliases are counted",
        "        if _entries(tree, YAML_DEPTH) > YAML_ENTRIES:\n",
        "        if False:\n",
        f"{LIMITS}yaml_is_measured_with_its_aliases_written_out",
    ),
    Mend(
        15,
        "messages shorten values",
        "    text = _Shortened().repr(value)\n",
        "    text = repr(value)\n    return text\n",
        f"{LIMITS}messages_repeat_values_only_in_part",
    ),
    Mend(
        15,
        "a report checks the seed and the steps of a run",
        '        _check_whole(config, name, path / "config.yaml")\n',
        "        pass\n",
        f"{LIMITS}a_report_of_a_strangers_seed_or_steps_is_one_short_message",
    ),
    Mend(
        15,
        "the live page shows whole numbers only",
        "    return value if isinstance(value, int) else None\n",
        "    return value\n",
        "test_watch.py::test_a_strangers_run_does_not_hide_the_others",
    ),
    Mend(
        15,
        "the live page leaves out links that lead to themselves",
        "        except (OSError, RuntimeError):  # links that lead to themselves\n",
        "        except ZeroDivisionError:\n",
        "test_watch.py::test_a_strangers_run_does_not_hide_the_others",
    ),
    Mend(
        16,
        "observations that are not finite are named",
        'if raw.dtype.kind == "f" and not fits_float32(raw).all():',
        "if False:",
        f"{LIMITS}nan_and_infinity_of_an_environment_are_named",
    ),
    Mend(
        17,
        "copies and pickles of the plug-in",
        "    def __reduce__(self)",
        "    def reduce(self)",
        f"{PLUG}a_copy_goes_on_as_the_original_does",
    ),
    Mend(
        17,
        "it says that it has diverged",
        "            self._diverged = str(error)\n",
        "",
        f"{PLUG}after_a_divergence_it_says_so_until_a_sound_state_is_loaded",
    ),
    Mend(
        17,
        "actions out of range are told",
        "    if bool(((actions < 0) | (actions >= sizes)).any()):\n",
        "    if False:\n",
        f"{PLUG}counted_actions_out_of_range_are_told",
    ),
    Mend(
        17,
        "an empty Dict is told",
        "    if not space.spaces:\n",
        "    if False:\n",
        f"{PLUG}odd_numbers_are_told_or_understood",
    ),
    Mend(
        17,
        "byte-swapped arrays are read",
        '    array = array.astype(array.dtype.newbyteorder("="), copy=False)',
        "    pass",
        f"{PLUG}odd_numbers_are_told_or_understood",
    ),
    Mend(
        17,
        "`update` learns under `no_grad`",
        "with torch.inference_mode(False), torch.enable_grad():  # whatever mode",
        "if True:  # whatever mode",
        f"{PLUG}it_learns_whatever_mode_the_loop_is_in",
    ),
    Mend(
        17,
        "numbers beyond float32 are told",
        "    if not numbers.isfinite().all():\n",
        "    if False:\n",
        f"{PLUG}odd_numbers_are_told_or_understood",
    ),
    Mend(
        18,
        "cells are no formulas",
        'return f"\'{text}" if text.lstrip("\'").startswith(_FORMULA) else text',
        "return text",
        f"{LIMITS}cells_that_a_spreadsheet_would_compute_are_texts",
    ),
    Mend(
        18,
        "names in summary.md are escaped",
        'return re.sub(r"^(\\s*)([#+-])", r"\\1\\\\\\2", " ".join(escaped.split()))',
        "return text",
        f"{LIMITS}names_in_a_summary_are_text_and_nothing_else",
    ),
)


def limited() -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def outcome(tree: Path, tests: Iterable[str], words: str = "", patience: float = PATIENCE) -> str:
    """What the tests do on the copy: pass, fail, or not end."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *(f"tests/{test}" for test in tests),
    ]
    command += ["-k", words] if words else []
    process = subprocess.Popen(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree / "src")}, preexec_fn=limited,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        code = process.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return "does not end"
    if code not in (0, 1):
        raise SystemExit(f"pytest ended with code {code}: {command}")
    return "fails" if code else "PASSES"


def undone(tree: Path, mend: Mend) -> Path | None:
    """Undoes it; the file, or None if there is no such text or several."""
    found = [file for file in (tree / "src").rglob("*.py") if mend.old in file.read_text()]
    if len(found) != 1 or found[0].read_text().count(mend.old) != 1:
        return None
    found[0].write_text(found[0].read_text().replace(mend.old, mend.new))
    return found[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", type=int, help="of docs/reliability.md; all when not given")
    parser.add_argument("--check", action="store_true", help="first see the tests pass, as make test does")
    args = parser.parse_args()
    mends = [mend for mend in MENDS if not args.items or mend.item in args.items]
    bad = 0
    print("| item | what is undone | the test that fails then | |\n|---:|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="deir-undone-") as scratch:
        tree = Path(scratch)
        for folder in ("src", "tests"):
            shutil.copytree(ROOT / folder, tree / folder)
        shutil.copy(ROOT / "pyproject.toml", tree)
        if args.check:
            names = dict.fromkeys(mend.test.split()[0] for mend in mends)
            bad += outcome(tree, names, patience=10 * PATIENCE) != "PASSES"
            print(f"the tests {'fail' if bad else 'pass'} with all mends", file=sys.stderr, flush=True)
        for mend in mends:
            file = undone(tree, mend)
            name, _, words = mend.test.partition(" ")
            said = "NOT FOUND" if file is None else outcome(tree, [name], words)
            if file is not None:
                shutil.copy2(ROOT / file.relative_to(tree), file)
            bad += said not in ("fails", "does not end")
            print(f"| {mend.item} | {mend.what} | `{mend.test.split()[0]}` | {said} |", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

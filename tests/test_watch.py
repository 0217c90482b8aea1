"""`deir watch`: runs on a page of this machine; nothing else can be reached, and nothing is written."""

import http.client
import json
import os
import platform
import signal
import subprocess
import sys
import time
from datetime import date
from threading import Thread

import pytest
import yaml

import deir
from deir.errors import UserError
from deir.experiments.watch.command import Watch, run, watching
from deir.experiments.watch.runs import Watched
from deir.experiments.watch.server import Server
from deir.files import HOLDER
from made_runs import make_run, make_sweep
from small import small


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two runs with curves alone, and one that was trained."""
    root = tmp_path_factory.mktemp("watched")
    make_sweep(root / "sweep", tasks=("DoorKey-8x8",), methods=("deir", "<b>none</b>"), seeds=1)
    deir.train(steps=128, seed=0, out=root / "own", **small(env={"max_steps": 12}))
    return root


@pytest.fixture(scope="module")
def server(place):
    made = Server(Watched([place]), 0)
    Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def ask(server, path, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=120)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.getheaders())


def tree(place):
    return {path: path.stat().st_mtime_ns for path in sorted(place.rglob("*"))}


def test_it_shows_runs_report_and_newest_episode_and_writes_nothing(server, place):
    before = tree(place)
    assert server.server_address[0] == "127.0.0.1"
    status, page, headers = ask(server, "/")
    assert status == 200 and "deir watch" in page and "frame-ancestors 'self'" in headers["Content-Security-Policy"]
    runs = {run["title"]: run for run in json.loads(ask(server, "/state")[1])["runs"]}
    expected = ("deir on DoorKey-8x8", "<b>none</b> on DoorKey-8x8", "deir on DoorKey-5x5")
    assert set(runs) == {f"{name}, seed 0" for name in expected}
    own = runs["deir on DoorKey-5x5, seed 0"]
    assert own["status"] == "finished" and int(own["frames"]) == 128 and own["replay"] == "0000001.safetensors"
    report = ask(server, "/report")[1]
    assert "Runs so far" in report and "<b>none</b>" not in report.split("<script")[0]
    assert 'content="deir replay"' in ask(server, f"/replay/{own['name']}")[1]
    assert tree(place) == before


def test_a_page_is_made_again_only_when_its_run_has_gone_on(tmp_path):
    watched = Watched([tmp_path])
    with pytest.raises(UserError, match="no run has begun"):
        watched.report()
    assert watched.state() == {"report": "", "runs": []}
    make_run(tmp_path / "one", [0.1, 0.2])
    first = watched.report()
    assert watched.report() is first
    make_run(tmp_path / "one", [0.1, 0.2, 0.3])
    assert watched.report() is not first


def test_a_run_whose_process_is_gone_does_not_train(tmp_path):
    make_run(tmp_path / "run", [0.1])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, holder = platform.node(), tmp_path / "run" / HOLDER
    for writer, status in (
        (f"process {os.getpid()} on {here}", "running"),
        (f"process {ended.pid} on {here}", "stopped"),
        (f"process {10**30} on {here}", "stopped"),
        (f"process {ended.pid} on another machine", "running"),  # nobody can tell
        ("", "stopped"),
    ):
        holder.write_text(writer)
        assert [run["status"] for run in Watched([tmp_path]).state()["runs"]] == [status]
    holder.unlink()
    assert Watched([tmp_path]).state()["runs"][0]["status"] == "stopped"


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/replay/../../etc/passwd", "/replay/%2e%2e%2fown", "/replay/own", "/replay/",
     "/own/config.yaml", "//etc/passwd", "/replay/..\\own", "/report/x", "/static/../watch.html"],
)  # fmt: skip
def test_no_path_of_a_request_reaches_a_file(server, path):
    status, text, _ = ask(server, path)
    assert status == 404 and "root:" not in text and "n_envs" not in text


def test_runs_whose_files_lie_elsewhere_are_not_shown(tmp_path):
    make_run(tmp_path / "outside" / "secret", [0.1])
    inside = tmp_path / "inside" / "run"
    inside.mkdir(parents=True)
    (inside / "config.yaml").symlink_to(tmp_path / "outside" / "secret" / "config.yaml")
    (inside / "progress.csv").symlink_to(tmp_path / "outside" / "secret" / "progress.csv")
    (tmp_path / "inside" / "linked").symlink_to(tmp_path / "outside" / "secret")
    assert Watched([tmp_path / "inside"]).runs() == {}


def test_a_strangers_run_does_not_hide_the_others(tmp_path):
    make_run(tmp_path / "own", [0.1])
    for name in ("config.yaml", "progress.csv", "checkpoints"):
        odd = make_run(tmp_path / name, [0.1])
        (odd / name).unlink(missing_ok=True)
        (odd / name).symlink_to(odd / name)
    for number, value in enumerate((float("nan"), "x", date(2026, 1, 1))):
        odd = make_run(tmp_path / f"odd{number}", [0.1])
        tree = yaml.safe_load((odd / "config.yaml").read_text())
        (odd / "config.yaml").write_text(yaml.safe_dump({**tree, "steps": value, "checkpoint": {"every": value}}))
    state = json.loads(json.dumps(Watched([tmp_path]).state(), allow_nan=False))
    assert {run["path"]: run["steps"] for run in state["runs"]} == {
        "own": 1000,
        "odd0": None,
        "odd1": None,
        "odd2": None,
    }


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM)])
def test_it_serves_until_it_is_stopped(tmp_path, sent, code):
    as_typed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored under nohup
    words = [sys.executable, "-c", f"{as_typed}; from deir.cli import main; main()", "watch", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline().split()[0].rstrip("/").rsplit(":", 1)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/state")
        assert json.loads(connection.getresponse().read()) == {"report": "", "runs": []}
        connection.close()
        assert process.poll() is None
        process.send_signal(sent)
        try:
            assert process.wait(60) == code and process.stderr.read() == ""
        finally:
            process.kill()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(server, method):
    assert ask(server, "/", method)[0] in (405, 501)


def test_another_name_for_this_machine_is_refused(server):
    assert ask(server, "/", host="example.com")[0] == 403
    assert ask(server, "/", host=f"localhost:{server.server_address[1]}")[0] == 200


def test_mistakes_are_told(tmp_path, server):
    with pytest.raises(UserError, match=r"runs: got .*missing"):
        run(Watch((tmp_path / "missing",)))
    with pytest.raises(UserError, match="port: got 70000"):
        run(Watch((tmp_path,), port=70_000))
    with pytest.raises(UserError, match=r"port: got \d+, expected a free port"):
        run(Watch((tmp_path,), port=server.server_address[1]))


def test_beside_training_it_ends_with_it(tmp_path, capsys):
    with watching(tmp_path / "later", True):
        address = capsys.readouterr().out.split()[-1]
        assert address.startswith("http://127.0.0.1:")
        port = int(address.rstrip("/").rsplit(":", 1)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/state")
        assert json.loads(connection.getresponse().read()) == {"report": "", "runs": []}
        connection.close()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/state")


def test_a_killed_training_takes_its_server_along(tmp_path):
    """The pipe to it closes however the process ends."""
    code = (
        "import os, sys, time; from pathlib import Path; from deir.experiments.watch.command import watching\n"
        "with watching(Path(sys.argv[1]), True): time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    port = int(process.stdout.readline().strip().rstrip("/").rsplit(":", 1)[1])
    process.kill()
    process.wait()
    for _ in range(600):
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/")
        except ConnectionRefusedError:
            return
        except OSError:  # it is ending
            pass
        time.sleep(0.1)
    pytest.fail("the server still answers")

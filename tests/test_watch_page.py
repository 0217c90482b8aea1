"""The page of `deir watch` in a real browser, while runs go on."""

import socket
from pathlib import Path
from threading import Thread

import pytest

import deir
from deir.experiments.watch.runs import Watched
from deir.experiments.watch.server import Server
from deir.runs import run as runs
from made_runs import make_run
from small import small

CURVES, TRAINED = "none on DoorKey-8x8, seed 0", "deir on DoorKey-5x5, seed 3"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run with curves alone, and one that was trained."""
    root = tmp_path_factory.mktemp("followed")
    make_run(root / "curves", [0.1, 0.2, 0.3], method="none")
    deir.train(steps=128, seed=3, out=root / "own", **small(env={"max_steps": 12}))
    return root


@pytest.fixture(scope="module")
def server(place):
    made = Server(Watched([place]), 0)
    Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def visit(browser, server):
    """Opens the page; whatever goes wrong in it or in the frames, and whatever is asked of others, fails the test."""
    contexts, troubles = [], []

    def open_page(width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(60_000)
        contexts.append(context)
        tab = context.new_page()
        tab.clock.install()
        tab.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else 0)
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        own = (server.address, "data:", "blob:")
        tab.on("request", lambda request: None if request.url.startswith(own) else troubles.append(request.url))
        tab.goto(server.address)
        assert "Runs so far" in seen(tab, "report").locator("h1").inner_text()
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def seen(tab, key):
    """The frame that is seen, drawn."""
    frame = tab.frame_locator(f"iframe[data-key='{key}']:not(.coming)")
    frame.locator("html[data-ready=yes]").wait_for()
    return frame


def choose(tab, title):
    """Presses the button of a run; its name."""
    tab.locator("nav button", has_text=title).click()
    names = tab.evaluate("Object.fromEntries(state.runs.map(run => [run.title, run.name]))")
    return names[title]


def pass_time(tab):
    """Longer than a page stays as it is."""
    tab.clock.run_for(12_000)


def ground(place):
    return place.evaluate("e => Number(getComputedStyle(e).backgroundColor.match(/\\d+/)[0])")


def test_it_loads_and_shows_every_run(visit, server):
    tab = visit()
    assert tab.title() == "deir watch"
    facts = tab.locator("nav button").all_inner_texts()
    assert len(facts) == 3 and facts[0].startswith("Report") and "2 runs" in facts[0]
    assert any(CURVES in text and "return 0.300" in text and "stopped" in text for text in facts)
    assert any(TRAINED in text and "128 frames" in text and "finished" in text for text in facts)
    assert tab.locator("#say").inner_text().startswith("0 of 2 still train")


def test_it_follows_rows_and_keeps_what_the_reader_chose(visit, place):
    tab = visit()
    report = seen(tab, "report")
    report.locator("#view").select_option(label="DoorKey-8x8")
    report.locator("#metric").select_option("intrinsic_reward_mean")
    report.locator("#log-x").check(force=True)
    report.locator(".chip", has_text="deir").click()
    report.locator("#summary").evaluate("e => scrollTo(0, 500)")
    make_run(place / "curves", [0.1, 0.2, 0.3, 0.7], method="none")
    pass_time(tab)
    tab.locator("nav button", has_text="return 0.700").wait_for()
    report = seen(tab, "report")
    report.locator(".facts", has_text="4,000 frames").wait_for()
    assert tab.locator("iframe").count() == 1
    assert report.locator("#metric").input_value() == "intrinsic_reward_mean" and report.locator("#log-x").is_checked()
    assert report.locator(".chip", has_text="deir").get_attribute("aria-pressed") == "false"
    assert report.locator("#summary").evaluate("e => scrollY") == 500
    assert report.locator("#plot-curves").evaluate("e => e._fullLayout.yaxis.title.text") == "intrinsic reward"


def test_it_shows_the_newest_episode_and_then_the_next(visit, place):
    tab = visit()
    name = choose(tab, TRAINED)
    replay = seen(tab, name)
    assert "trained for 128 frames" in replay.locator(".detail").inner_text()
    replay.locator("#on").click()
    replay.locator("#clock", has_text="1 /").wait_for()
    runs.resume(place / "own", {"steps": 256})
    pass_time(tab)
    replay.locator(".detail", has_text="trained for 256 frames").wait_for()
    assert tab.locator("nav button[aria-pressed=true]").inner_text().startswith(TRAINED)


def test_a_run_without_a_checkpoint_says_so(visit):
    tab = visit()
    choose(tab, CURVES)
    assert "this run has none yet" in tab.locator("#note").inner_text()
    assert tab.locator("iframe").count() == 0
    tab.locator("nav button", has_text="Report").click()
    seen(tab, "report")
    assert not tab.locator("#note").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_downwards_in_light_and_dark(visit, scheme):
    tab = visit(375, scheme)
    frames = [tab, seen(tab, "report"), seen(tab, choose(tab, TRAINED))]
    for frame in frames[::2]:
        assert frame.locator("html").evaluate("e => e.scrollWidth") == 375
        red = ground(frame.locator("body"))
        assert red < 60 if scheme == "dark" else red > 200
    box = tab.locator("iframe").bounding_box()
    assert box["width"] == 375 and box["height"] > 500


def test_it_cannot_be_led_out_of_the_runs_nor_reached_from_elsewhere(visit, server, place):
    tab = visit()
    outside = Path(__file__)
    for path in (f"/replay/../..{outside}", f"/%2e%2e{outside}", f"/replay/%2e%2e%2f%2e%2e{outside}", f"/{place}/own"):
        answer = tab.request.get(server.address.rstrip("/") + path)
        assert answer.status == 404 and "n_envs" not in answer.text() and "import" not in answer.text()
    with pytest.raises(ConnectionRefusedError):  # another address of the same machine
        socket.create_connection(("127.0.0.2", server.server_address[1]), timeout=10)


def test_it_says_when_the_server_has_ended(browser, place):
    made = Server(Watched([place]), 0)
    Thread(target=made.serve_forever, daemon=True).start()
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(made.address)
    seen(tab, "report")
    made.shutdown()
    made.server_close()
    tab.locator("#say", has_text="the server has ended").wait_for()
    assert "Runs so far" in seen(tab, "report").locator("h1").inner_text()
    context.close()

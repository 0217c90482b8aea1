"""The page of a replay in a real browser, opened from disk."""

import pytest

import deir
from deir.agent import load
from deir.experiments.replay.players import Choices, make_page
from small import small


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    root = tmp_path_factory.mktemp("replays")
    kinds = {
        "deir": {}, "noveld": {"method": "noveld"}, "ngu": {"method": "ngu"}, "noisy": {"env": {"noise": 0.1}},
        "cart": {"env": {"id": "CartPole-v1", "n_envs": 4}, "method": "icm"},
    }  # fmt: skip
    for name, changes in kinds.items():
        deir.train(steps=256, seed=3, out=root / name, **small(**changes))
    few = Choices(episodes=2, max_steps=60, map_episodes=4)
    for name, parts in {"one": ["deir"], "two": ["deir", "noveld"], "more": ["ngu", "noisy"], "cart": ["cart"]}.items():
        page = make_page([load(root / part) for part in parts], few, "Made <i>up</i>" if name == "one" else None)
        (root / f"{name}.html").write_text(page)
    return root


@pytest.fixture
def visit(browser, pages):
    """Opens a page; whatever goes wrong in it fails the test."""
    contexts, troubles = [], []

    def trouble(text):
        troubles.append(text)

    def open_page(name, width=1280, scheme="light", place=""):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(60_000)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: trouble(message.text) if message.type in ("error", "warning") else None)
        tab.on("pageerror", lambda error: trouble(str(error)))
        tab.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else trouble(r.url))
        tab.goto((pages / f"{name}.html").as_uri() + place)
        tab.wait_for_selector("html[data-ready=yes]")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


def drawn(tab, selector):
    """The pictures on the canvases, to be compared."""
    settle(tab)
    return tab.evaluate(f"[...document.querySelectorAll('{selector}')].map(canvas => canvas.toDataURL())")


def settle(tab):
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def clock(tab):
    settle(tab)
    return int(tab.locator("#clock").inner_text().split("/")[0])


PARTS = ("canvas.scene", ".now canvas", "canvas.lane", "canvas.map")


def test_it_loads_from_disk_and_asks_the_network_for_nothing(visit):
    tab = visit("one")
    assert tab.title() == "Made <i>up</i>" and tab.locator("h1").inner_text() == "Made <i>up</i>"
    assert tab.locator("h1 i").count() == 0  # it is text
    assert tab.locator(".chip").count() == 2 and tab.locator("canvas.lane").count() == 5
    blank = tab.evaluate("(() => { const c = document.createElement('canvas'); return c.toDataURL(); })()")
    for part in PARTS:
        assert all(picture != blank for picture in drawn(tab, part))


def test_the_cursor_moves_everything(visit):
    tab = visit("one")
    before = {part: drawn(tab, part) for part in PARTS}
    figures = tab.locator(".figures").inner_text()
    tab.evaluate("goTo(25)")
    after = {part: drawn(tab, part) for part in PARTS}
    assert clock(tab) == 25 and tab.locator("#scrub").input_value() == "25"
    for part in ("canvas.scene", ".now canvas"):
        assert before[part] != after[part]
    assert all(a != b for a, b in zip(before["canvas.lane"], after["canvas.lane"], strict=True))
    assert before["canvas.map"] != after["canvas.map"]
    assert tab.locator(".figures").inner_text() != figures


def test_figures_are_those_of_the_step_and_the_earlier_observation_is_shown(visit):
    tab = visit("one")
    step = tab.evaluate("data.players[0].episodes[0].intrinsic.findIndex((r, t) => r > 0 && t > 3) + 1")
    assert step > 0
    tab.evaluate(f"goTo({step})")
    settle(tab)
    told = dict(
        zip(tab.locator(".figures dt").all_inner_texts(), tab.locator(".figures dd").all_inner_texts(), strict=True)
    )
    expected = tab.evaluate(f"figure(data.players[0].episodes[0].intrinsic[{step} - 1], 4)")
    assert told["intrinsic reward"] == expected and {"dist(obs)", "dist(traj)", "running mean"} <= told.keys()
    past = tab.evaluate(f"data.players[0].episodes[0].why.nearest[{step} - 1][0]")
    assert f"step {past}" in tab.locator(".past figcaption").inner_text()
    shown = drawn(tab, ".past canvas")
    tab.locator(".past button").click()
    assert clock(tab) == past and drawn(tab, ".now canvas") == shown  # the very view it was compared with
    tab.keyboard.press("e")
    assert clock(tab) == step


def test_the_keyboard_works(visit):
    tab = visit("one")
    press = tab.keyboard.press
    for key, expected in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("Shift+ArrowRight", 11),
        ("Home", 0),
    ):
        press(key)
        assert clock(tab) == expected
    press("End")
    assert clock(tab) == tab.evaluate("longest()")
    press("ArrowUp")
    assert tab.locator("#speed").input_value() == "8"
    press("]")
    assert tab.locator(".chip[aria-pressed=true]").inner_text().startswith("layout 2") and clock(tab) == 0
    press("n")
    novel = clock(tab)
    assert novel > 0 and tab.evaluate(f"data.players[0].episodes[1].intrinsic[{novel} - 1] >= data.players[0].mean")
    press("Space")
    for _ in range(100):  # the page's policy forbids the evaluation that wait_for_function does
        if clock(tab) > novel:
            break
        tab.wait_for_timeout(100)
    assert clock(tab) > novel
    press("Space")
    assert not tab.evaluate("shown.playing")
    stopped = clock(tab)
    tab.wait_for_timeout(300)
    assert clock(tab) == stopped


def test_buttons_scrubber_and_lanes_move_the_cursor(visit):
    tab = visit("one")
    tab.locator("#on").click()
    assert clock(tab) == 1
    tab.locator("#last").click()
    assert clock(tab) == tab.evaluate("longest()")
    tab.locator("#back").click()
    assert clock(tab) == tab.evaluate("longest()") - 1
    tab.locator("#scrub").fill("7")
    assert clock(tab) == 7
    tab.locator("canvas.lane").first.evaluate("lane => lane.scrollIntoView({block: 'center'})")
    box = tab.locator("canvas.lane").first.bounding_box()
    tab.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 5)
    assert abs(clock(tab) - tab.evaluate("longest()") / 2) <= 1
    tab.locator("#play").click()
    tab.locator("#play[aria-label=pause]").wait_for()  # drawn with the next frame
    tab.locator("#play").click()
    tab.locator("#play[aria-label=play]").wait_for()


def test_hover_over_the_strip_tells_the_distances(visit):
    tab = visit("one", place="#episode=1&step=30")
    assert clock(tab) == 30
    tab.locator(".lane-box.strip canvas").evaluate("lane => lane.scrollIntoView({block: 'center'})")
    box = tab.locator(".lane-box.strip canvas").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * (10.5 / (tab.evaluate("longest()") + 1)), box["y"] + 5)
    settle(tab)
    told = tab.locator(".lane-box.strip output").inner_text()
    assert told.startswith("step 10:") and "dist(obs)" in told and "dist(traj)" in told


def test_maps_have_three_scopes(visit):
    tab = visit("one", place="#step=20")
    seen = [drawn(tab, "canvas.map")]
    for scope in ("this layout", "all layouts"):
        tab.locator(".segment button", has_text=scope).click()
        seen.append(drawn(tab, "canvas.map"))
        assert seen[-1] != seen[-2] and "4 episodes" in tab.locator(".maps .say").inner_text()


def test_a_map_shows_differences_below_zero_and_beside_an_outlier(visit):
    tab = visit("one")
    colours = tab.evaluate("""(() => {
        const map = data.players[0].maps.layout[0], { scene } = data.players[0].episodes[0];
        map.x = [1, 2, 3, 1, 2, 3]; map.y = [1, 1, 1, 2, 2, 2];
        map.value = [-0.6, -0.5, -0.4, -0.4, -0.6, 9]; map.visits = map.intrinsic = map.x.map(() => 1);
        scene.cells = scene.cells.map(() => 1); scene.changes = [];
        shown.scope = "layout";
        drawAll();
        const canvas = document.querySelectorAll("canvas.map")[2], s = canvas.width / scene.width;
        const row = canvas.getContext("2d").getImageData(0, 1.5 * s, 4 * s, 1).data;
        return [1, 2, 3].map(x => row[4 * Math.floor((x + 0.5) * s)]);
    })()""")
    low, middle, high = colours  # less red is more green
    assert low - middle > 40 and middle - high > 40
    assert tab.locator(".panels .told").nth(2).inner_text() == "-0.6 up to 9"


def test_a_reward_of_rounding_alone_is_not_called_new(visit):
    tab = visit("one", place="#step=5")
    for share, told in ((1e-9, "Not novel."), (0.004, "less than 1% of"), (0.5, "50% of the running mean")):
        tab.evaluate(f"data.players[0].episodes[0].intrinsic[4] = {share} * data.players[0].mean; drawAll()")
        assert told in tab.locator(".verdict").inner_text()


def test_two_runs_share_the_layout_and_the_cursor(visit):
    tab = visit("two", width=1400)
    left, right = (tab.locator(".player").nth(k) for k in (0, 1))
    assert left.locator("h2").inner_text() == "deir" and right.locator("h2").inner_text() == "noveld"
    first, second = drawn(tab, "canvas.scene")
    assert first == second  # before the first step
    boxes = [part.locator("canvas.scene").bounding_box() for part in (left, right)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    tab.evaluate("goTo(12)")
    first, second = drawn(tab, ".lane-box.intrinsic canvas")
    assert first != second  # what they find novel in one place
    for name in ("nearest", "step 12"):
        assert name in left.locator(".views").inner_text()
    assert "novelty now" in right.locator(".figures").inner_text()


def test_every_kind_of_method_and_view_is_drawn(visit):
    tab = visit("more", width=1400)
    tab.evaluate("goTo(20)")
    settle(tab)
    assert tab.locator(".others button").count() >= 3  # the further neighbours of NGU
    assert "lifelong factor" in tab.locator(".figures").first.inner_text()
    tab = visit("cart")
    before = drawn(tab, "canvas.scene")
    tab.evaluate("goTo(5)")
    tab.wait_for_timeout(200)
    assert drawn(tab, "canvas.scene") != before
    assert tab.locator("canvas.map").count() == 0 and "forward error" in tab.locator(".figures").inner_text()


@pytest.mark.parametrize("name", ["one", "two", "cart"])
def test_a_phone_scrolls_only_downwards_and_its_controls_can_be_touched(visit, name):
    tab = visit(name, width=375)
    assert tab.evaluate("document.documentElement.scrollWidth") == 375
    for button in tab.locator(".buttons button").all():
        box = button.bounding_box()
        assert box["width"] >= 36 and box["x"] >= 0 and box["x"] + box["width"] <= 375
    tab.locator("#on").click()
    assert clock(tab) == 1
    assert tab.locator("canvas.scene").first.bounding_box()["width"] > 280


def test_dark_and_light_are_the_readers_choice(visit):
    def ground(tab):
        return tab.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")

    light, dark = visit("one"), visit("one", scheme="dark")
    assert ground(light) > 200 and ground(dark) < 60
    scenes = drawn(light, "canvas.scene"), drawn(dark, "canvas.scene")
    assert scenes[0] != scenes[1]
    light.keyboard.press("t")
    assert ground(light) < 60 and drawn(light, "canvas.scene") == scenes[1]

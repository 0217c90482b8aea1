"""The page of a report in a real browser, opened from disk."""

import pytest

from deir.experiments.report import page
from deir.experiments.report.analysis import Study
from deir.experiments.report.curves import read_all
from made_runs import make_run, make_sweep


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    make_sweep(root / "runs", methods=("deir", "none", "<b>bold</b> & co"), seeds=5)
    curves, notes = read_all([root / "runs"])
    (root / "report.html").write_text(page.render(Study(curves, 100, notes), "Made <i>up</i>"))
    return root / "report.html"


@pytest.fixture
def opened(browser, path):
    """The loaded page, with everything that went wrong in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    tab = context.new_page()
    tab.troubles = []
    tab.on("console", lambda message: tab.troubles.append(message.text) if message.type in ("error", "warning") else 0)
    tab.on("pageerror", lambda error: tab.troubles.append(str(error)))
    tab.on(
        "request",
        lambda request: (
            None if request.url.startswith(("file:", "data:", "blob:")) else tab.troubles.append(request.url)
        ),
    )
    tab.goto(path.as_uri())
    tab.wait_for_selector("#plot-reach .main-svg")
    yield tab
    assert tab.troubles == []
    context.close()


def traces(tab, plot="plot-curves"):
    """Names of what a plot shows."""
    return tab.evaluate(f"[...new Set(document.getElementById('{plot}').data.map(trace => trace.name))]")


def drawn(tab, plot="plot-curves"):
    """The lines on the screen."""
    return tab.evaluate(
        f"[...document.querySelectorAll('#{plot} .scatterlayer path.js-line')].map(p => p.getAttribute('d'))"
    )


def test_it_loads_without_errors_and_without_the_network(opened):
    assert opened.title() == "Made <i>up</i>"
    assert opened.locator(".main-svg").count() >= 4
    assert opened.locator(".facts").inner_text() == "2 tasks, 3 methods, seeds 0–4, 10,000 frames a run."
    assert opened.locator("b", has_text="bold").count() == 0  # labels are text


def test_a_chip_hides_its_method_in_every_plot_and_in_the_table(opened):
    before = drawn(opened)
    chip = opened.locator(".chip", has_text="PPO alone")
    rows = opened.locator("#summary tbody tr:visible")
    assert rows.count() == 3
    chip.focus()
    opened.keyboard.press("Enter")
    assert chip.get_attribute("aria-pressed") == "false"
    assert "none" not in traces(opened) and "none" not in traces(opened, "plot-profile")
    assert 0 < len(drawn(opened)) < len(before)
    assert rows.count() == 2
    opened.locator("#everything").click()
    assert drawn(opened) == before


def test_all_methods_hidden_is_said_and_undone(opened):
    for chip in opened.locator(".chip").all():
        chip.click()
    assert opened.locator("#plot-curves p.empty").inner_text() == "No method is chosen."
    opened.locator(".chip", has_text="deir").click()
    assert traces(opened) == ["deir"] and drawn(opened)


def test_a_plot_that_is_emptied_while_it_is_drawn_is_no_error(opened):
    """Plotly goes on with a plot after the call that draws it."""
    opened.evaluate("for (const chip of document.querySelectorAll('.chip')) chip.click()")
    opened.locator("#plot-curves p.empty").wait_for()
    opened.wait_for_timeout(500)  # `opened` looks for errors
    opened.evaluate("for (const chip of document.querySelectorAll('.chip')) for (const _ of [1, 2, 3]) chip.click()")
    assert len(traces(opened)) == 3 and drawn(opened)


def test_scales_axes_statistics_metrics_and_tasks_change_the_plot(opened):
    def layout(key):
        return opened.evaluate(f"document.getElementById('plot-curves')._fullLayout.{key}")

    seen = [drawn(opened)]

    def changed():
        seen.append(drawn(opened))
        return seen[-1] != seen[-2] and bool(seen[-1])

    assert layout("yaxis.type") == "linear"
    opened.locator("#log-y").check(force=True)
    assert layout("yaxis.type") == "log" and changed()
    opened.locator("#log-x").check(force=True)
    assert layout("xaxis.type") == "log" and changed()
    opened.locator("#view").select_option(label="FourRooms")
    assert layout("xaxis.title.text") == "frames" and changed()
    opened.locator("input[value=seconds]").check(force=True)
    assert layout("xaxis.title.text") == "seconds" and changed()
    opened.locator("input[value=iqm]").check(force=True)
    assert "interquartile" in opened.locator("#say-curves").inner_text()
    opened.locator("#metric").select_option("intrinsic_reward_mean")
    assert layout("yaxis.title.text") == "intrinsic reward" and changed()
    opened.locator("#view").select_option(index=0)  # over tasks there is no intrinsic reward
    assert layout("yaxis.title.text") == "return ÷ best return" and changed()


def test_hover_tells_the_numbers(opened):
    from playwright.sync_api import expect

    box = opened.locator("#plot-curves").bounding_box()
    opened.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.5)
    expect(opened.locator("#plot-curves .hoverlayer")).to_contain_text("10 of 10 runs (seeds 0–4)")
    text = opened.locator("#plot-curves .hoverlayer").text_content()
    assert "deir" in text and "<b>bold</b> & co" in text


def test_the_table_sorts(opened):
    def column(number):
        return opened.locator(f"#summary tbody tr:visible > :nth-child({number})").all_inner_texts()

    heading = opened.locator("#summary thead th", has_text="final return")
    heading.locator("button").click()
    falling = column(3)
    assert heading.get_attribute("aria-sort") == "descending" and falling == sorted(falling, reverse=True)
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending" and column(3) == falling[::-1]


def test_probability_follows_its_controls(opened):
    opened.locator("#measure").select_option("auc")
    opened.locator("#reference").select_option(label="PPO alone")
    values = opened.evaluate(
        "document.getElementById('plot-probability').data.filter(t => t.mode == 'markers').map(t => t.x[0])"
    )
    assert len(values) == 2 and values[0] < 0.1  # PPO alone against deir


def test_a_run_that_has_just_begun_is_a_dot(browser, tmp_path):
    """A line through one point would show nothing."""
    make_run(tmp_path / "run", [None, 0.5])
    curves, notes = read_all([tmp_path / "run"])
    (tmp_path / "report.html").write_text(page.render(Study(curves, 100, notes), "Just begun"))
    context = browser.new_context()
    tab = context.new_page()
    tab.goto((tmp_path / "report.html").as_uri())
    tab.wait_for_selector("html[data-ready=yes]")
    dots = tab.locator("#plot-curves path.point").all()
    assert dots and all(dot.bounding_box()["width"] > 5 for dot in dots)
    context.close()


def test_a_phone_scrolls_only_downwards_and_dark_is_dark(browser, path):
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    context.set_default_timeout(60_000)
    tab = context.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_selector("#plot-reach .main-svg")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    red = tab.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
    assert red < 60
    context.close()

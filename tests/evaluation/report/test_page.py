"""The report in a browser."""

from pathlib import Path

import pytest

from hlorank.evaluation.report.write_report import write_report
from tests.browser import DESKTOP, PHONE, Browser
from tests.evaluation.conftest import training

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report of three methods, one with three seeds."""
    taus = dict(zip(("graph1", "graph2", "graph10", "graph9"), (0.5, 0.25, 0.75, None), strict=True))
    methods = (("gst", 0), ("gst", 1), ("full", 0), ("a_method_with_a_long_name", 0))
    runs = [training(method, seed, taus) for method, seed in methods]
    runs.append(training("gst", 2, per_graph=[], predictions=[], place="f" * 32))
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(runs, path)
    return path


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_offline_and_without_warnings(browser: Browser, page: Path, size: tuple[int, int], dark: bool) -> None:
    browser.look(size, dark)
    browser.open(page)
    assert browser.requests == [page.as_uri()]
    assert browser.errors == []
    assert browser.warnings == []
    assert browser.ask("document.querySelectorAll('.chart svg').length") == 1 + 3 + 2 + 3 + 1
    assert browser.ask("document.documentElement.scrollWidth") <= size[0], "the page does not scroll sideways"
    inside = (
        "[...document.querySelectorAll('.chart svg')].every((svg) => svg.getBoundingClientRect().right <= innerWidth)"
    )
    assert browser.ask(inside)
    in_view = "(cell) => { const box = cell.getBoundingClientRect(); return box.left >= 0 && box.right <= innerWidth; }"
    for table in ("[aria-label^=Summary]", ".graphs"):
        browser.ask(f"document.querySelector('{table}').scrollIntoView()")
        taus = f"[...document.querySelectorAll('{table} th')].filter((cell) => /Kendall tau/.test(cell.textContent))"
        assert browser.ask(f"{taus}.length === 1 && {taus}.every({in_view})"), "tau is in view without scrolling"
    cut = """[...document.querySelectorAll('.scroll:has(table)')].filter((box) => box.scrollWidth > box.clientWidth)
      .map((box) => `${box.ariaLabel ?? box.className}: ${box.scrollWidth} of ${box.clientWidth} px`).join()"""
    assert bool(found := browser.ask(cut)) == (size == PHONE), f"no column is cut on a desktop: {found}"


def test_text_and_marks_stand_out_in_light_and_dark(browser: Browser, page: Path) -> None:
    luminance = """((color) => {
      const part = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
      const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(part);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    })"""
    found = {}
    for dark in (False, True):
        browser.look(DESKTOP, dark)
        browser.open(page)

        def measured(selector: str, style: str) -> float:
            return float(browser.ask(f"{luminance}(getComputedStyle(document.querySelector(`{selector}`)).{style})"))

        def contrast(one: float, other: float) -> float:
            return (max(one, other) + 0.05) / (min(one, other) + 0.05)

        paper = found[dark] = measured("body", "backgroundColor")
        assert contrast(measured("body", "color"), paper) > 7
        assert contrast(measured(".note", "color"), paper) > 4.5
        assert contrast(measured(".chart text", "fill"), paper) > 7, "charts take the colour of text"
        for colour in range(7):
            browser.ask(f"document.body.style.outlineColor = 'var(--c{colour})'")
            assert contrast(measured("body", "outlineColor"), paper) > 3, colour
    assert found[False] > 0.9
    assert found[True] < 0.05
    browser.look(DESKTOP, dark=True, media="print")
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)", "paper is white"
    assert not browser.ask("document.querySelector('nav').checkVisibility()")


GRAPHS = "[...document.querySelectorAll('.graphs tbody th span')].map((name) => name.textContent)"
TAUS = """[...document.querySelectorAll('.graphs tbody tr')].map((row) =>
  row.cells[[...document.querySelectorAll('.graphs thead th')].findIndex((th) => th.textContent === 'Kendall tau')]
    .textContent)"""
SORTS = "[...document.querySelectorAll('.graphs thead th')].map((th) => th.ariaSort).filter((sort) => sort !== 'none')"


def test_the_table_of_graphs_sorts_by_mouse_and_by_keyboard(browser: Browser, page: Path) -> None:
    browser.look()
    browser.open(page)
    assert browser.ask(SORTS) == []
    button = "[...document.querySelectorAll('.graphs thead button')].find((one) => one.textContent === '{}')"
    browser.ask(button.format("Kendall tau") + ".click()")
    ascending = browser.ask(TAUS)
    assert ascending == ["0.250"] * 3 + ["0.500"] * 3 + ["0.750"] * 3 + [""] * 3
    assert browser.ask(SORTS) == ["ascending"]
    browser.ask(button.format("Kendall tau") + ".focus()")
    browser.press("Enter")
    assert browser.ask(SORTS) == ["descending"]
    assert browser.ask(TAUS) == ["0.750"] * 3 + ["0.500"] * 3 + ["0.250"] * 3 + [""] * 3, "without a value: at the end"
    browser.ask(button.format("graph") + ".focus()")
    browser.press(" ")
    sorted_names = [f"graph{number}" for number in (1, 2, 9, 10) for _ in range(3)]
    assert browser.ask(GRAPHS) == sorted_names, "numbers in names count as numbers"
    browser.press("Tab")
    assert browser.ask("document.activeElement.textContent") == "Kendall tau"


def test_one_graph_can_be_chosen_in_the_plots_of_ranks(browser: Browser, page: Path) -> None:
    browser.look()
    browser.open(page)
    marks = "[...document.querySelectorAll('[data-views] .mark-symbol path')]"
    points = f"{marks}.filter((mark) => mark.checkVisibility()).length"
    assert browser.ask(points) == 3 * 4
    browser.ask(
        "(() => { const all = document.querySelector('select'); all.selectedIndex = 1;"
        " all.dispatchEvent(new Event('change')); })()"
    )
    browser.wait_for(f"{points} === 3")

"""The page in a real browser: nothing sticks out, nothing is loaded, sliders and quiz answer to the keyboard."""

from __future__ import annotations

import base64
import json
import os
import shutil

import pytest
from handmade import questions, results
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from outdo.lab.interactive import TOYS
from outdo.lab.page import write_page
from outdo.lab.traces import traces

pytestmark = pytest.mark.whole

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Debian's chromium; without one the tests are skipped, in CI they fail."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    service = shutil.which("chromedriver")
    if browser is None or service is None:
        reason = "needs chromium and chromedriver: apt-get install chromium chromium-driver"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(service))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(results(), tmp_path_factory.mktemp("page"), questions())


@pytest.fixture
def show(driver, page):
    """Opens the page at a width and returns the driver."""

    def show(width: int, scheme: str = "light"):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get(page.as_uri())
        return driver

    return show


def find(driver, selector: str):
    return driver.find_element(By.CSS_SELECTOR, selector)


def find_all(driver, selector: str):
    return driver.find_elements(By.CSS_SELECTOR, selector)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375, 360])
def test_nothing_sticks_out_and_nothing_is_wrong(show, tmp_path, width, scheme):
    driver = show(width, scheme)
    wide, inner = driver.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= inner
    # Whatever is wider than the page lies in a box that scrolls.
    outside = driver.execute_script(
        """
        const boxes = ".table, .panel.wide";
        const wide = (e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.parentElement.closest(boxes);
        return [...document.querySelectorAll("main *")].filter(wide).map((e) => e.outerHTML.slice(0, 80));
        """
    )
    assert outside == []
    assert driver.get_log("browser") == []
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path = tmp_path / f"{width}-{scheme}.png"
    path.write_bytes(base64.b64decode(shot["data"]))
    assert path.stat().st_size > 20_000


def test_nothing_is_loaded_from_elsewhere(driver, show, page):
    driver.get_log("performance")  # what the browser loaded for itself as it started
    show(1280)
    asked = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [
        each["params"]["request"]["url"] for each in asked if each["method"] == "Network.requestWillBeSent"
    ]
    assert page.as_uri() in urls
    assert [url for url in urls if url != page.as_uri() and not url.startswith(("data:", "blob:"))] == []


@pytest.mark.parametrize("width", [1280, 375])
def test_a_slider_moves_the_curves(show, width):
    driver = show(width)
    for make in TOYS.values():
        toy = make()
        position = toy.start
        box = find(driver, f'[data-toy="{toy.name}"]')
        slider = box.find_element(By.CSS_SELECTOR, "input")
        for key, step in ((Keys.ARROW_RIGHT, 1), (Keys.ARROW_RIGHT, 1), (Keys.ARROW_LEFT, -1)):
            shown = curves(driver, box)
            assert shown == [data(panel) for panel in toy.frames[position].panels]
            slider.send_keys(key)
            position += step
            assert curves(driver, box) != shown
            assert box.find_element(By.CSS_SELECTOR, "output").text == toy.frames[position].sentence
            assert slider.get_attribute("aria-valuetext") == f"{toy.symbol} = {toy.values[position]:g}"
        drawn = box.find_elements(By.CSS_SELECTOR, ".chart .main-svg")
        assert len(drawn) >= len(toy.frames[0].panels)


def curves(driver, box):
    """Names and heights of the curves that plotly holds for each chart of a slider."""
    script = "return [...arguments[0].querySelectorAll('.chart')].map((c) => c.data.map((d) => [d.name ?? '', d.y]))"
    return driver.execute_script(script, box)


def data(panel):
    return [[trace.get("name", ""), trace["y"]] for trace in traces(panel)]


@pytest.mark.parametrize("width", [1280, 375])
def test_the_quiz_answers_at_once_to_the_keyboard(show, width):
    driver = show(width)
    first, second = find_all(driver, ".quiz fieldset")
    score = find(driver, ".score")
    assert score.text == ""
    assert not find(driver, ".again").is_displayed()

    wrong = next(each for each in buttons(first) if "raises the mean" in each.text)
    wrong.send_keys(Keys.ENTER)
    told = feedback(first)
    assert told.startswith("Not right. The mean stays.")
    assert "Measured in What lambda shows: “close by” is −0.3052." in told
    assert "✗" in wrong.text
    assert first.find_element(By.CSS_SELECTOR, ".feedback").get_attribute("role") == "status"
    link = first.find_element(By.CSS_SELECTOR, ".feedback a")
    assert link.get_attribute("href").endswith("#experiment-lambda")
    assert score.text == "1 of 2 answered, 0 right at the first try."

    next(each for each in buttons(first) if "lowers" in each.text).send_keys(Keys.SPACE)
    assert feedback(first).startswith("Right. From 2.8 to 0.5.")
    assert score.text == "1 of 2 answered, 0 right at the first try."  # the first choice counts

    next(each for each in buttons(second) if "lowers" in each.text).send_keys(Keys.ENTER)
    assert score.text == "Done: 1 of 2 right at the first try."
    assert score.get_attribute("role") == "status"

    find(driver, ".again").send_keys(Keys.ENTER)
    assert [feedback(each) for each in (first, second)] == ["", ""]
    assert score.text == ""
    assert driver.switch_to.active_element == buttons(first)[0]


def buttons(question):
    return question.find_elements(By.CSS_SELECTOR, "button")


def feedback(question) -> str:
    return " ".join(question.find_element(By.CSS_SELECTOR, ".feedback").text.split())


def test_everything_that_answers_can_be_reached_by_tab(show):
    driver = show(1280)
    reached = set()
    for _ in range(120):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(
            driver.execute_script("const e = document.activeElement; return e.id || e.className || e.tagName")
        )
    assert {f"slider-{make().name}" for make in TOYS.values()} <= reached
    assert {"table tall", "table", "panel wide", "BUTTON", "SUMMARY", "A"} <= reached


def test_it_prints_in_full(show, tmp_path):
    driver = show(1280, "dark")
    options = {"preferCSSPageSize": True, "printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
    pdf = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", options)["data"])
    assert pdf.startswith(b"%PDF")
    (tmp_path / "page.pdf").write_bytes(pdf)
    widths = "return [...document.querySelectorAll('.chart')].map((chart) => chart.offsetWidth)"
    drawn = driver.execute_script(widths)
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script(widths) == pytest.approx(drawn, abs=1)  # no chart is cut
    colour = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert colour == "rgb(255, 255, 255)"
    assert not find(driver, ".slider").is_displayed()
    tall = find(driver, ".tall")
    assert driver.execute_script("return arguments[0].scrollHeight <= arguments[0].clientHeight + 1", tall)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})

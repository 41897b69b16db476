"""Open every notebook in JupyterLab in headless Chromium, run it, move its widgets: `make browser`.

    python benchmarks/browser.py [00 13 ...]

Works on copies in build/browser and leaves a screenshot of every notebook's controls there. Fails
where a cell ends in an error or writes to stderr, or where moving a control changes nothing. Of the
site, if it is built (`make site`), it moves the frames of the same notebooks' pages.
What `make figures` has trained is not trained again. Needs Chromium and its driver
(Debian: chromium, chromium-driver).
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from fedlib import paths

WORK = paths.build() / "browser"
OPENING, RUNNING, REDRAWING = 120, 1800, 60  # seconds
# All cells are in the page, not only those on the screen.
SETTINGS = "@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
RUN_ALL = """
const done = arguments[0];
window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => done(''), e => done(`${e}`))
"""
TROUBLE = """
const cells = [...window.jupyterapp.shell.currentWidget.content.widgets];
return cells.flatMap(cell => (cell.model.outputs ? cell.model.outputs.toJSON() : [])
  .filter(o => o.output_type === 'error' || o.name === 'stderr')
  .map(o => o.evalue || String(o.text).slice(0, 200)));
"""
# What a control changes: a picture, or the line that says what the next run is made with.
SHOWN = """
const pictures = '.jp-Notebook .widget-image, .jp-Notebook .jupyter-widgets img';
const lines = '.jp-Notebook .widget-html-content';
return [...document.querySelectorAll(pictures)].map(i => i.src).join() +
  [...document.querySelectorAll(lines)].map(i => i.innerText).join()
"""
FRAMES = "return [...document.querySelectorAll('[data-frames] img')].map(i => i.src)"
# Where an explorer says what went wrong.
COMPLAINTS = """
return [...document.querySelectorAll('.jp-Notebook .widget-html b')]
  .map(b => b.parentElement.innerText).join('; ')
"""


def main(numbers: list[str]) -> int:
    """Try the notebooks of these numbers, or all; 1 if anything was wrong."""
    chosen = [
        p
        for p in sorted((paths.ROOT / "notebooks").glob("*.ipynb"))
        if not numbers or p.name[:2] in numbers
    ]
    _prepare(chosen)
    wrong = 0
    with _lab() as address, _chromium() as driver:
        for notebook in chosen:
            wrong += not _tried(driver, f"{address}/lab/tree/{notebook.name}?reset", notebook.stem)
            page = paths.ROOT / "build" / "site" / "notebooks" / f"{notebook.stem}.html"
            wrong += page.exists() and not _frames_move(driver, page)
    print(f"{len(chosen)} notebooks, {wrong} with something wrong; screenshots in {WORK}")
    return int(wrong > 0)


def _prepare(notebooks: list[Path]) -> None:
    shutil.rmtree(WORK, ignore_errors=True)
    (WORK / "notebooks").mkdir(parents=True)
    for notebook in notebooks:
        shutil.copy(notebook, WORK / "notebooks")
    settings = WORK / "settings" / SETTINGS
    settings.parent.mkdir(parents=True)
    settings.write_text('{"windowingMode": "none"}', "utf-8")


@contextmanager
def _lab() -> Iterator[str]:
    """Serve the copies until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "FEDLIB_FIGURES": str(WORK / "figures"),
        "JUPYTERLAB_SETTINGS_DIR": str(WORK / "settings"),
        "PYTHONPATH": str(paths.ROOT),
    }
    options = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    options += ["--IdentityProvider.token=", "--expose-app-in-browser"]
    call = [sys.executable, "-m", "jupyter", "lab", str(WORK / "notebooks"), *options]
    with (WORK / "lab.log").open("w", encoding="utf-8") as log:
        lab = subprocess.Popen(call, stdout=log, stderr=log, env=environment)
        try:
            address = f"http://127.0.0.1:{port}"
            _until(lambda: _answers(f"{address}/api"), OPENING, "JupyterLab to answer")
            yield address
        finally:
            lab.terminate()
            lab.wait()


@contextmanager
def _chromium() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1500,1100"):
        options.add_argument(f"--{argument}")
    if found := shutil.which("chromium"):
        options.binary_location = found
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(RUNNING)
    driver.command_executor.client_config.timeout = RUNNING + OPENING  # its own is two minutes
    try:
        yield driver
    finally:
        driver.quit()


def _tried(driver: webdriver.Chrome, address: str, name: str) -> bool:
    """Run a notebook and move its widgets; say how it went, return whether all was well."""
    driver.get(address)
    idle = "return window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
    WebDriverWait(driver, OPENING).until(lambda d: d.execute_script(idle) == "idle")
    began = time.monotonic()
    trouble = [said for said in [driver.execute_async_script(RUN_ALL)] if said]
    trouble += driver.execute_script(TROUBLE)
    print(f"{name}: ran in {time.monotonic() - began:.0f} s", flush=True)
    moved = list(_moved(driver))
    trouble += [f"{what}: nothing changed" for what, changed in moved if not changed]
    trouble += [said for said in [driver.execute_script(COMPLAINTS)] if said]
    trouble += [] if moved else ["there is no control to move"]
    driver.save_screenshot(str(WORK / f"{name}.png"))
    print("   moved " + ", ".join(what for what, _ in moved))
    for said in trouble:
        print(f"   WRONG: {said}")
    driver.execute_async_script(
        "window.jupyterapp.commands.execute('kernelmenu:shutdown').then(arguments[0])"
    )
    return not trouble


def _frames_move(driver: webdriver.Chrome, page: Path) -> bool:
    """Move the sliders of a page of the site; say how many, return whether all pictures changed."""
    driver.get(page.as_uri())
    before = driver.execute_script(FRAMES)
    for slider in driver.find_elements(By.CSS_SELECTOR, "[data-frames] input"):
        slider.send_keys(Keys.ARROW_RIGHT)
    moved = sum(a != b for a, b in zip(before, driver.execute_script(FRAMES), strict=True))
    print(f"   on its page {moved} of {len(before)} sets of frames move")
    return moved == len(before)


def _moved(driver: webdriver.Chrome) -> Iterator[tuple[str, bool]]:
    """Move every control; yield what it is and whether that was seen."""
    for kind, selector, move in CONTROLS:
        for i, control in enumerate(driver.find_elements(By.CSS_SELECTOR, selector)):
            if not control.is_enabled():
                continue
            driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", control)
            before = driver.execute_script(SHOWN)
            if move(control):
                yield f"{kind} {i + 1}", _changed(driver, before)


def _changed(driver: webdriver.Chrome, before: str) -> bool:
    end = time.monotonic() + REDRAWING
    while time.monotonic() < end:
        time.sleep(0.5)
        if driver.execute_script(SHOWN) != before:
            return True
    return False


def _choose_next(control: WebElement) -> bool:
    menu = Select(control)
    count = len(menu.options)
    current = next(i for i, option in enumerate(menu.options) if option.is_selected())
    if count > 1:
        menu.select_by_index((current + 1) % count)
    return count > 1


def _choose_two(control: WebElement) -> bool:
    menu = Select(control)
    menu.deselect_all()
    for index in (0, 1):
        menu.select_by_index(index)
    return True


def _slide(control: WebElement) -> bool:
    ends = ("min", "now", "max")
    least, at, most = (float(control.get_attribute(f"aria-value{x}") or 0) for x in ends)
    control.send_keys(Keys.ARROW_RIGHT if at < most else Keys.ARROW_LEFT)
    return least < most


def _click(control: WebElement) -> bool:
    control.click()
    return True


CONTROLS: list[tuple[str, str, Callable[[WebElement], bool]]] = [
    ("menu", ".widget-dropdown select", _choose_next),
    ("list", ".widget-select-multiple select", _choose_two),
    ("choice", ".widget-toggle-buttons", lambda c: _click(_other(c))),
    ("box", ".widget-checkbox input", _click),
    ("slider", ".widget-slider .noUi-handle", _slide),
    ("button", "button.widget-button:not(.widget-toggle-buttons *)", _click),
]


def _other(buttons: WebElement) -> WebElement:
    return buttons.find_element(By.CSS_SELECTOR, "button:not(.mod-active)")


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def _until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s for {what}; see {WORK / 'lab.log'}")
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Open every notebook in JupyterLab in headless Chromium, run it, move its widgets: `make browser`.

    python benchmarks/browser.py [00 13 ...]

The notebooks are copies in build/browser, where a screenshot of the controls of each is left. The
check fails if a cell ends in an error or writes to stderr, or if moving a control changes nothing.
If the site is built (`make site`), the sliders of the same notebooks' pages are moved, too. Runs of
`make figures` are not trained again. Chromium and its driver are needed (Debian: chromium,
chromium-driver).
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
from functools import partial
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from fedlib import paths

WORK = paths.build() / "browser"
OPENING, RUNNING, REDRAWING = 120, 1800, 60  # seconds
SETTINGS = "@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
SCRIPT = Path(__file__).with_suffix(".js").read_text("utf-8")


def main(numbers: list[str]) -> int:
    """Check notebooks, all by default; return 1 if anything was wrong."""
    every = {p.name[:2]: p for p in sorted((paths.ROOT / "notebooks").glob("*.ipynb"))}
    if unknown := [number for number in numbers if number not in every]:
        sys.exit(f"no notebook has the number {', '.join(unknown)}; there are {', '.join(every)}")
    chosen = [p for number, p in every.items() if number in (numbers or every)]
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
    """Serve the copies within a block."""
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
            if not _until(lambda: _answers(f"{address}/api"), OPENING):
                raise TimeoutError(f"JupyterLab does not answer; see {WORK / 'lab.log'}")
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
    driver.command_executor.client_config.timeout = RUNNING + OPENING  # two minutes by default
    try:
        yield driver
    finally:
        driver.quit()


def _tried(driver: webdriver.Chrome, address: str, name: str) -> bool:
    """Run a notebook and move its widgets; print problems, return whether there are none."""
    driver.get(address)
    WebDriverWait(driver, OPENING).until(lambda d: _asked(d, "kernel()") == "idle")
    began = time.monotonic()
    failed = driver.execute_async_script(f"{SCRIPT}; run_all(arguments[0])")
    trouble = [*([failed] if failed else []), *_asked(driver, "trouble()")]
    print(f"{name}: ran in {time.monotonic() - began:.0f} s", flush=True)
    moved = list(_moved(driver))
    trouble += [f"{what}: nothing changed" for what, changed in moved if not changed]
    trouble += _asked(driver, "complaints()")
    trouble += [] if moved else ["there is no control to move"]
    driver.save_screenshot(str(WORK / f"{name}.png"))
    print("   moved " + ", ".join(what for what, _ in moved))
    for said in trouble:
        print(f"   WRONG: {said}")
    driver.execute_async_script(f"{SCRIPT}; shut_down(arguments[0])")
    return not trouble


def _asked(driver: webdriver.Chrome, what: str) -> Any:
    """Return the value of an expression in the page, which may call functions of ``browser.js``."""
    return driver.execute_script(f"{SCRIPT}; return {what}")


def _frames_move(driver: webdriver.Chrome, page: Path) -> bool:
    """Move the sliders of a page of the site; return whether all pictures changed."""
    driver.get(page.as_uri())
    before = _asked(driver, "frames()")
    for slider in driver.find_elements(By.CSS_SELECTOR, "[data-frames] input"):
        slider.send_keys(Keys.ARROW_RIGHT)
    moved = sum(a != b for a, b in zip(before, _asked(driver, "frames()"), strict=True))
    print(f"   on its page {moved} of {len(before)} sets of frames move")
    return moved == len(before)


def _moved(driver: webdriver.Chrome) -> Iterator[tuple[str, bool]]:
    """Move every control; yield its name, and whether the page changed."""
    for kind, selector, move in CONTROLS:
        for i, control in enumerate(driver.find_elements(By.CSS_SELECTOR, selector)):
            if not control.is_enabled():
                continue
            driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", control)
            before = _asked(driver, "shown()")
            if move(control):
                redrawn = partial(_redrawn, driver, before)
                yield f"{kind} {i + 1}", _until(redrawn, REDRAWING)


def _redrawn(driver: webdriver.Chrome, before: str) -> bool:
    return bool(_asked(driver, "shown()") != before)


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


OTHER = (By.CSS_SELECTOR, "button:not(.mod-active)")
CONTROLS: list[tuple[str, str, Callable[[WebElement], bool]]] = [
    ("menu", ".widget-dropdown select", _choose_next),
    ("list", ".widget-select-multiple select", _choose_two),
    ("choice", ".widget-toggle-buttons", lambda buttons: _click(buttons.find_element(*OTHER))),
    ("box", ".widget-checkbox input", _click),
    ("slider", ".widget-slider .noUi-handle", _slide),
    ("button", "button.widget-button:not(.widget-toggle-buttons *)", _click),
]


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return whether it did within some seconds."""
    end = time.monotonic() + seconds
    while not (done := holds()) and time.monotonic() < end:
        time.sleep(0.5)
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

import os
import shutil
import signal

import pytest
import torch

torch.set_num_threads(1)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a suite under `nohup` inherits that hang-ups are ignored

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ADVICE = "the tests of the page need Chromium: apt-get install chromium"


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        if os.environ.get("DEIR_REQUIRE_BROWSER"):
            pytest.fail(ADVICE)
        pytest.skip(ADVICE)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()

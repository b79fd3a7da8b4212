"""The page in a real browser, wide and narrow, with and without script; screenshots go to $SEDGE_SHOTS."""

import os
from pathlib import Path

import msgspec
from tests.cloud.helper import CONFIG, FLEET, a_hello
from tests.cloud.status.browser import Browser
from tests.cloud.status.seen import Seen

from sedge_cloud.config import CloudConfig
from sedge_cloud.status.server import StatusServer
from sedge_cloud.status.settings import HttpConfig
from sedge_cloud.status.snapshot import Snapshot

WIDTHS = (1200, 400)
LONG = "l" * 16  # as long as these tests can make one
NAMES = ("a", "b", "c", LONG)


def test_the_page_fits_tells_and_follows(tmp_path: Path) -> None:
    """No horizontal overflow at either width; what is wrong is on top; it follows without a reload."""
    config = msgspec.structs.replace(CONFIG, strategy="fedobp", num_rounds=9, quorum=0.5)
    seen = Seen(tmp_path / "cloud", config, NAMES)
    seen.cloud.hello()
    for _ in range(3):
        seen.round(*NAMES)
    why = "31 % battery " + "x" * 200  # nothing in it where a line could break
    seen.cloud.say("b", msgspec.structs.replace(a_hello("b"), waits=why))
    seen.gone(LONG)
    seen.record()
    cloud = CloudConfig(fleet=FLEET, state_dir=str(seen.state), http=HttpConfig("127.0.0.1:0"))
    server = StatusServer(cloud, Snapshot(cloud))
    server.start()
    shots = Path(os.environ.get("SEDGE_SHOTS", str(tmp_path)))
    url = f"http://127.0.0.1:{server.port}/"
    with Browser(tmp_path / "profile") as browser:
        for width in WIDTHS:
            for scripts in (True, False):
                browser.open(url, width, scripts=scripts)
                if scripts:
                    browser.until("document.getElementById('live').textContent === 'live'")
                wide = browser.value("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{wide} pixels too wide at {width}"
                found = browser.value("document.querySelector('#problems').innerText")
                assert "is offline; round 4 waits for it" in found
                assert "waits: 31 % battery" in found
            browser.picture(shots / f"status-{width}.png")
        browser.open(url, 1200)
        browser.until("document.getElementById('live').textContent === 'live'")
        seen.round("a", "c")  # the page learns of it by itself
        browser.until("document.querySelector('#run').innerText.includes('round 4 of')")
        browser.open(f"{url}confirm?verb=stop&name=run", 400)
        browser.value("setTimeout(() => document.querySelector('button').click()) && 0")
        browser.until("document.querySelector('#run .chip.stopped') !== null")
    server.close()
    seen.cloud.store.close()

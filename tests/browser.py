"""Open a page in headless Chromium, act on it by a script, and bring back what it returns."""

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]

# What a console would show: errors of scripts, files that do not load, warnings, policies.
WATCH = """<script>const errors = [];
addEventListener("error", (event) => errors.push(event.message || event.target.outerHTML), true);
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
for (const kind of ["error", "warn"]) console[kind] = (...words) => errors.push(words.join(" "));
const all = (selector) => [...document.querySelectorAll(selector)];
const pause = () => new Promise((go) => setTimeout(go, 100));
</script>"""
ACT = """<script>addEventListener("load", async () => {
  await pause();
  let out;
  try { out = await (async () => { %s })(); }
  catch (error) { out = { failed: String(error.stack) }; }
  out.wide = Math.max(0, document.documentElement.scrollWidth - innerWidth);
  await pause();
  const pre = document.createElement("pre");
  pre.id = "outcome";
  pre.textContent = JSON.stringify({ ...out, errors });
  document.body.append(pre);
});</script>"""


def in_browser(page: Path, steps: str, *, width: int = 1280, query: str = "") -> dict[str, Any]:
    """Return the object that a script returns when the page has loaded.

    Args:
        page: a file; a copy beside it is opened, so that links between files hold.
        steps: the body of an async function in JavaScript; `all(selector)` lists elements.
        width: of the window, in px.
        query: what follows the address, such as `?method=simclr`.

    Returns:
        What the steps return, and `wide`, px by which the page exceeds the window, and `errors`,
        the lines of the console.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    text = page.read_text(encoding="utf-8").replace("<title>", f"{WATCH}<title>", 1)
    assert WATCH in text, f"{page.name} has no title"
    probe = page.with_name(f"probe-{page.name}")
    probe.write_text(text.replace("</body>", f"{ACT % steps}</body>"), encoding="utf-8")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:  # it may write on
        done = subprocess.run(
            [browser, *FLAGS, f"--window-size={width},900", probe.as_uri() + query],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "HOME": home},
        )
    probe.unlink()
    match = re.search(r'<pre id="outcome">(.*?)</pre>', done.stdout, re.S)
    assert match, done.stderr[-2000:]
    outcome: dict[str, Any] = json.loads(html.unescape(match[1]))
    assert "failed" not in outcome, outcome
    return outcome

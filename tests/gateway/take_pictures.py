"""Takes the pictures of the page for the documentation: python -m tests.gateway.take_pictures URL [LOOK ...].

URL is that of a running gateway; the picture of the light look is taken with Qwen2.5-Coder 1.5B and 0.5B.
"""

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, expect

from tests.gateway.browser import open_browser

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
# Speculation does best where a text is returned with a change.
EDIT = """Return this function with `digits=2` changed to `digits=3`, and nothing else:

```python
def summarize(data, digits=2):
    if not data:
        raise ValueError("data is empty")
    mean = sum(data) / len(data)
    middle = sorted(data)[len(data) // 2]
    return {"count": len(data), "mean": round(mean, digits), "median": round(middle, digits)}
```"""
PROMPTS = {
    "light": EDIT,
    "dark": "Count from 1 to 30.",
    "narrow": "What is the capital of France, and what is it famous for?",
}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1240, "height": 1180}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1240, "height": 1000}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 800}, "color_scheme": "light"},
}
TIMEOUT_MS = 120_000


def take(browser: Browser, url: str, look: str) -> None:
    """Takes one of an answer, or in the dark of a comparison."""
    page = browser.new_page(**LOOKS[look])
    page.goto(url)
    expect(page.locator("#deployment")).to_contain_text("running", timeout=TIMEOUT_MS)
    page.locator("#fold").evaluate("fold => fold.open = true")
    page.fill("[name=max_tokens]", {"light": "200", "dark": "56", "narrow": "80"}[look])
    page.set_checked("[name=compare]", look == "dark")
    page.locator("#fold").evaluate("(fold, isOpen) => fold.open = isOpen", look != "narrow")
    page.fill("#prompt", PROMPTS[look])
    page.click("#send")
    expect(page.locator("#send")).to_be_enabled(timeout=TIMEOUT_MS)
    rejected = page.locator(".text del.rejected")
    if look != "dark" and rejected.count() > 0:
        rejected.first.click()
    page.evaluate("scrollTo(0, 0)")
    picture = Image.open(io.BytesIO(page.screenshot()))
    # A palette makes a small file.
    picture.quantize(256).save(FOLDER / f"page_{look}.png", optimize=True)
    page.close()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with open_browser() as browser:
        for look in sys.argv[2:] or LOOKS:
            take(browser, sys.argv[1], look)

"""Pages in headless Chromium, by Selenium."""

from pathlib import Path


class Visit:
    """A page that was opened in the browser; nothing may have gone wrong on it."""

    def __init__(self, browser: object, page: Path, width: int = 1280, scheme: str = "light") -> None:
        self.browser = browser
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get("about:blank")
        browser.get(page.as_uri())
        browser.get_log("browser")

    def js(self, script: str) -> object:
        return self.browser.execute_script(script)

    def texts(self, selector: str) -> list[str]:
        return self.js(f"return [...document.querySelectorAll({selector!r})].map((e) => e.innerText.trim())")

    def press(self, key: str) -> None:
        self.browser.switch_to.active_element.send_keys(key)
        self.settle()

    def click(self, selector: str, place: int = 0) -> None:
        element = self.browser.find_elements("css selector", selector)[place]
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self.settle()

    def settle(self) -> None:
        """Until the page has answered: addresses change and charts are laid out in turns of their own."""
        wait = "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))"
        self.browser.execute_async_script(f"const done = arguments[0]; {wait}")
        assert self.browser.get_log("browser") == []

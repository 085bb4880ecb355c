# SPDX-License-Identifier: Apache-2.0
"""A Chromium without a window, spoken to through a pipe by its DevTools protocol: one start for many pictures."""
import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time

import e2e
import tap


def raised(fd):
    """The same above the numbers that the browser wants for itself."""
    number = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return number


class Browser:
    def __init__(self):
        self.program = shutil.which("chromium") or shutil.which("chromium-browser")
        if not self.program:
            raise tap.Skip("no browser is installed (Debian: chromium)")
        self.folder = tempfile.TemporaryDirectory(prefix="switchml-browser-", ignore_cleanup_errors=True)
        to_read, self.to = map(raised, os.pipe())
        self.source, to_write = map(raised, os.pipe())
        env = {**e2e.environment(), "HOME": self.folder.name, "TMPDIR": self.folder.name, "TZ": "UTC"}
        actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
                   (os.POSIX_SPAWN_OPEN, 2, os.path.join(self.folder.name, "log"), os.O_WRONLY | os.O_CREAT, 0o600),
                   (os.POSIX_SPAWN_DUP2, to_read, 3), (os.POSIX_SPAWN_DUP2, to_write, 4)]
        self.pid = os.posix_spawn(self.program, [
            self.program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
            "--disable-extensions", "--disable-background-networking", f"--user-data-dir={self.folder.name}/profile",
            "--remote-debugging-pipe"], env, file_actions=actions, setpgroup=0)
        os.close(to_read)
        os.close(to_write)
        self.number, self.rest, self.events, self.session = 0, b"", [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Network":
            self.ask(domain + ".enable")

    def hear(self, seconds):
        """The next message."""
        deadline = time.monotonic() + seconds * e2e.PATIENCE
        while b"\0" not in self.rest:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.source], [], [], left)[0], "the browser does not answer"
            part = os.read(self.source, 1 << 20)
            assert part, "the browser has ended"
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        text = json.dumps(message).encode() + b"\0"
        while text:
            text = text[os.write(self.to, text):]
        while True:
            answer = self.hear(30)
            if answer.get("id") != self.number:
                self.events.append(answer)
                continue
            assert "error" not in answer, (method, answer)
            return answer["result"]

    def run(self, script):
        """The value of a JavaScript expression."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, script, what, seconds=15):
        e2e.wait_until(lambda: self.run(script), f"{what}: {script}", seconds)

    def open(self, address):
        self.ask("Page.navigate", url=address)
        self.wait_until("document.readyState == 'complete' && location.href != 'about:blank'", "the page is loaded")

    def press(self, key):
        code = {"Enter": 13, "Escape": 27}.get(key, 0)
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code,
                 **({"text": "\r"} if key == "Enter" else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def set_screen(self, width, height, scheme):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def picture(self, path, whole=False):
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))

    def complaints(self):
        """What its console says, and errors that nobody caught."""
        return [event for event in self.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown") or
                (event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "warning"))]

    def requests(self):
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def close(self):
        os.close(self.to)
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.source)
        self.folder.cleanup()

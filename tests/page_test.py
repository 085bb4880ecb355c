#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The status page in a browser: of a daemon with jobs that work, lag and end, and of 0, 1, 3 and 20 jobs on screens of three
widths, light and dark. The pictures stay in SML_PICTURES."""
import contextlib
import copy
import http.server
import json
import os
import re
import signal
import subprocess
import threading
import urllib.parse

import browser
import e2e
import http_test
import peer
import real
import tap

PICTURES = os.environ.get("SML_PICTURES", "page-pictures")
WIDTHS = {390: 844, 768: 1024, 1280: 800}
# Timers run forty times as fast, so that two minutes of charts take three seconds.
HASTE = "const slow = setTimeout; setTimeout = (what, ms) => slow(what, ms / 40)"
OVERLAP = """[...document.querySelectorAll('h1, .row > *, dt, dd, td, th, h2')].filter(node => {
  const box = node.getBoundingClientRect(), inner = document.createRange();
  inner.selectNodeContents(node);
  const text = inner.getBoundingClientRect();
  return box.width > 0 && node.textContent && (text.right > box.right + 1 || text.bottom > box.bottom + 1 || text.left < box.left - 1);
}).map(node => node.className + ': ' + node.textContent)"""
SIBLINGS = """[...document.querySelectorAll('.row')].flatMap(row => {
  const boxes = [...row.children].map(node => node.getBoundingClientRect()).filter(box => box.width > 0 && box.height > 0);
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 &&
    b.top < a.bottom - 1).map(() => row.textContent));
})"""
CONTRASTS = """(() => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(part => part / 255).map(c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = node => { for (; node; node = node.parentElement) { const color = getComputedStyle(node).backgroundColor;
    if (!/, 0\\)$/.test(color)) return color; } };
  return [...document.querySelectorAll('h1, h1 *, p, small, .row span, .row b, dt, dd, td, th, h2, summary')].map(node => {
    const [a, b] = [light(getComputedStyle(node).color), light(ground(node))].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), node.textContent];
  }).filter(([ratio, text]) => ratio < 4.5);
})()"""


class Story:
    """A stand-in that serves the daemon's page, with its headers, and a status that a test has made: a second goes by with each
    answer."""

    def __init__(self, page, policy):
        story = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self): # pylint: disable=invalid-name
                is_page = urllib.parse.urlparse(self.path).path == "/"
                data = page.encode() if is_page else json.dumps(story.next_status()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8" if is_page else "application/json")
                self.send_header("Content-Security-Policy", policy)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass
        self.status, self.second = None, 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def tell(self, status):
        self.status, self.second = status, 0

    def next_status(self):
        self.second += 1
        status = self.status
        status["uptime_s"] += 1
        status["time"] += 1
        for number, job in enumerate(status["jobs"]):
            wave = 1 + (self.second * (3 + number) % 17) / 40 - (0.5 if self.second % 30 < 4 else 0)
            is_still = job["health"] in ("late", "lost") and self.second > 88
            for rank in job["ranks"]:
                rank["bytes"] += 0 if is_still else int(wave * 4e7 / (1 + number))
            job["bytes"] = sum(rank["bytes"] for rank in job["ranks"])
            job["retransmissions"] += self.second % 5 if number % 4 == 2 else 0
            job["operations_called"] += 0 if is_still else 3
            status["lanes"][0]["rx_bytes"] += 0 if is_still else int(wave * 16e7 / (1 + number))
        return status


def make_jobs(template, num_jobs):
    """Job 2 of 3 is late, job 9 waits for ranks, job 11 is slow, job 13 lost a rank. The others are healthy."""
    jobs = []
    for number in range(num_jobs):
        job = copy.deepcopy(template)
        world_size = 4 + 4 * (number % 3)
        job.update(name=["resnet50", "gpt2-medium", "vit-base"][number] if num_jobs <= 3 else f"train-{number + 1}", number=number,
                   world_size=world_size, present=world_size, contributors=world_size, since_s=3600.0 * (number + 1), slots=128, lanes=1,
                   retransmissions=17 * number, operations_called=1200 * (number + 1), operations_completed=1200 * (number + 1),
                   slots_waiting=0, map="#" * 96 + "." * 32, bytes=0, shards=4 if number == 4 else 1, shard=0,
                   aggregators=["192.0.2.1:48879", "[2001:db8::2]:48879", "192.0.2.3:48879"] if number == 4 else [])
        job["ranks"] = [{**copy.deepcopy(template["ranks"][0]), "rank": rank, "host": f"10.0.{number}.{rank + 1}", "bytes": 0}
                        for rank in range(world_size)]
        if number in (1, 12):
            state = "late" if number == 1 else "lost"
            text = (f"rank 3 (10.0.{number}.4) is late for 12 s: it has called 2399 operations, others 2400; 112 slots wait with 7 to 7 "
                    "of 8 contributions" if state == "late" else f"rank 3 (10.0.{number}.4) was lost 2.0 s ago")
            job["ranks"][3].update(state=state, since_s=12.0, text=text, slots_missing=112)
            job.update(health=state, late=int(number == 1), slots_waiting=112, least_contributions=7, most_contributions=7, map="7" * 112 + "." * 16)
        if number == 8:
            job.update(state="joining", health="joining", present=world_size - 2, since_s=40.0)
            job["ranks"] = [rank for rank in job["ranks"] if rank["rank"] not in (2, 5)]
        if number == 10:
            job.update(health="slow", why="nothing was summed for 1.4 s: 5 of 9 slots that wait lack rank 1 (10.0.10.2)", slots_waiting=9,
                       map="3" * 9 + "#" * 87 + "." * 32)
        jobs.append(job)
    return jobs


@contextlib.contextmanager
def opened():
    page = browser.Browser()
    try:
        os.makedirs(PICTURES, exist_ok=True)
        yield page
    finally:
        page.close()


def check_real_daemon(page, template):
    """From no job to a late rank, to a daemon that is gone; fills template with a status and the page."""
    with http_test.daemon() as (process, port):
        template.update(address=f"http://127.0.0.1:{port}/", page=http_test.get(port, "/")[2], policy=http_test.get(port, "/")[1]["Content-Security-Policy"])
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_until("document.querySelector('h1').textContent == 'No jobs'", "it says that there is none")
        doctor = peer.Member(process.port, 0, 2, job_name="doctor.1.0123abcd")
        doctor.connect()
        doctor.say_join()
        doctor.hear_welcome()
        with http_test.job_at_work(process, MEMBER_PAUSE_US=5000) as members:
            page.wait_until("document.querySelector('.row .rate')?.textContent.endsWith('MB/s')", "a job works")
            template["status"] = json.loads(http_test.get(port, "/api/status")[2])
            assert len(template["status"]["jobs"]) == 2 and page.run("document.querySelectorAll('.row').length") == 1
            members[1].send_signal(signal.SIGSTOP)
            page.wait_until("/^page[^ ]*: rank 1 \\(127.0.0.1\\) is late for \\d/.test(document.querySelector('h1').textContent)", "it is told")
            page.wait_until("document.querySelector('.late .who').textContent.includes(': it is silent (stopped, or cut off)')", "and more")
            told = page.run("document.querySelector('.late .who').textContent")
            status = subprocess.run([e2e.SWITCHML, "status", process.address, "--interval", "0"], env=e2e.environment(),
                                    capture_output=True, text=True, check=False, timeout=20 * e2e.PATIENCE)
            same = re.sub(r"\d+(\.\d+)?", "n", told).partition("; n slots")[0] # as of another moment
            assert same in re.sub(r"\d+(\.\d+)?", "n", status.stdout) and status.returncode == 3, (told, status)
            doctor.close()
            members[0].process.kill()
            page.wait_until("document.querySelector('.lost .who')?.textContent.startsWith('rank 0 (127.0.0.1) was lost')", "who is lost")
            members[1].send_signal(signal.SIGCONT)
            page.wait_until("document.querySelector('#ended .wrong')?.textContent == 'failed'", "its end is told")
            assert page.run("!document.body.textContent.includes('doctor.1')")
            assert not page.complaints(), page.complaints()
    asked = {url.replace(f"http://127.0.0.1:{port}", "") for url in page.requests() if url.startswith("http")}
    assert asked == {"/", "/api/status"}, asked
    page.wait_until("/^switchmld does not answer since \\d\\d:\\d\\d:\\d\\d, for \\d/.test(document.querySelector('h1').textContent)", "it is gone")
    assert page.run("document.body.className") == "gone" and page.run("getComputedStyle(document.querySelector('main')).opacity") < "1"
    page.picture(os.path.join(PICTURES, "gone.png"))
    page.events.clear()


def check_screen(page, width, scheme, num_jobs):
    what = f"{num_jobs} jobs, {width} px, {scheme}"
    assert page.run("document.documentElement.scrollWidth") <= width, what
    assert not page.run(OVERLAP) and not page.run(SIBLINGS), (what, page.run(OVERLAP), page.run(SIBLINGS))
    assert not page.run(CONTRASTS), (what, page.run(CONTRASTS))
    assert page.run("document.querySelectorAll('.row').length") == num_jobs, what
    if num_jobs == 20 and width == 1280:
        assert page.run("document.querySelector('.jobs').getBoundingClientRect().bottom") <= WIDTHS[width], what
    if num_jobs >= 3: # who is late stands at the top, in the headline and first of the rows
        assert page.run("[...document.querySelectorAll('h1 b, .who b')].filter(node => node.textContent.startsWith('rank 3 (10.0.') && "
                        "node.getBoundingClientRect().bottom < 420).length") >= 2, what


def check_keyboard(page, path):
    page.run("document.activeElement.blur()")
    page.press("ArrowDown")
    page.press("Enter")
    assert page.run("document.querySelectorAll('.details:not([hidden])').length") == 1
    assert page.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    assert page.run("document.querySelectorAll('.slots i').length") == 128
    assert page.run("document.querySelectorAll('.details .chart path.tick').length") == 6
    page.run("scrollTo(0, 0)")
    page.picture(path, whole=False)
    assert page.run("document.documentElement.scrollWidth == innerWidth") and not page.run(OVERLAP), page.run(OVERLAP)
    page.press("Escape")
    assert page.run("document.querySelectorAll('.details:not([hidden])').length") == 0


def check_aggregators(page, own_port):
    """Those that the job's ranks named are links to pages at this one's port; this one is none; one found no room."""
    page.run("[...document.querySelectorAll('.row')].find(row => row.textContent.includes('aggregator 1 of 4')).click()")
    told = page.run("[...document.querySelectorAll('.details:not([hidden]) dd')].map(node => node.textContent).find(text => /192.0.2.1/.test(text))")
    assert told == "192.0.2.1:48879 (this), [2001:db8::2]:48879, 192.0.2.3:48879 and 1 more", told
    links = page.run("[...document.querySelectorAll('.details a')].map(node => node.href)")
    assert links == [f"http://[2001:db8::2]:{own_port}/", f"http://192.0.2.3:{own_port}/"], links
    assert page.run("document.documentElement.scrollWidth == innerWidth") and not page.run(CONTRASTS)
    page.press("Escape")


def test_page():
    template = {}
    with opened() as page:
        page.set_screen(1280, 800, "light")
        check_real_daemon(page, template)
        story = Story(template["page"], template["policy"])
        page.ask("Page.addScriptToEvaluateOnNewDocument", source=HASTE)
        work = next(job for job in template["status"]["jobs"] if job["state"] == "running")
        work["ranks"] = [rank for rank in work["ranks"] if rank["state"] == "joined"]
        for num_jobs in 0, 1, 3, 20:
            status = copy.deepcopy(template["status"])
            status.update(jobs=make_jobs(work, num_jobs), ended=[] if num_jobs < 20 else [
                {"name": "train-0", "key": "", "ago_s": 700.0, "failed": True, "world_size": 8, "text": "rank 5 (10.0.0.6) was lost: its lease ran out"}])
            story.tell(status)
            page.open(story.address + f"?{num_jobs}")
            enough = 100 if num_jobs in (3, 20) else 12
            e2e.wait_until(lambda: story.second > enough, "time goes by", 30) # pylint: disable=cell-var-from-loop
            for width, height in WIDTHS.items():
                for scheme in "light", "dark":
                    page.set_screen(width, height, scheme)
                    check_screen(page, width, scheme, num_jobs)
                    page.picture(os.path.join(PICTURES, f"{num_jobs:02}-jobs-{width}-{scheme}.png"))
                    if num_jobs == 3:
                        check_keyboard(page, os.path.join(PICTURES, f"details-{width}-{scheme}.png"))
                    if num_jobs == 20:
                        check_aggregators(page, story.server.server_port)
        # the page of the daemon that is gone may have asked it once more
        complaints = [event for event in page.complaints() if template["address"] not in str(event)]
        assert not complaints, complaints
        story.server.shutdown()


if __name__ == "__main__":
    tap.main(globals())

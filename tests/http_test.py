#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What switchmld serves over HTTP: metrics that promtool accepts, a dashboard that asks for metrics that there are;
and clients that stall, flood or talk nonsense."""
import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import types
import urllib.error
import urllib.request

import e2e
import peer
import real
import tap

HERE = os.path.dirname(os.path.abspath(__file__))
RULES = os.path.join(os.path.dirname(HERE), "share", "prometheus", "switchml.rules.yml")
DASHBOARD = os.path.join(os.path.dirname(HERE), "share", "grafana", "switchml.json")
NONE = "this switchmld was built without libmicrohttpd"


@contextlib.contextmanager
def daemon(*arguments):
    """(daemon, port of HTTP)"""
    # A daemon that comes as far as HTTP, and no further.
    probe = subprocess.run([e2e.SWITCHMLD, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--port-file", "/no/port"],
                           env=e2e.environment(), capture_output=True, text=True, check=False, timeout=20 * e2e.PATIENCE)
    if NONE in probe.stderr:
        raise tap.Skip("switchmld was built without libmicrohttpd")
    assert probe.returncode == 1 and "cannot write the port file" in probe.stderr, probe
    with e2e.Daemon("--http", "127.0.0.1:0", *arguments) as process:
        yield process, int(re.search(r"http://127.0.0.1:(\d+)/", process.text()).group(1))


@contextlib.contextmanager
def job_at_work(process, world_size=2, **env):
    members = [real.Member(process.address, rank, world_size, **{"MEMBER_JOB": "page", "MEMBER_ELEMENTS": 30000, **env})
               for rank in range(world_size)]
    try:
        for member in members:
            member.wait_for("working")
        yield members
    finally:
        for member in members:
            member.process.kill()
            member.process.wait()


def get(port, path, method="GET"):
    """(status, headers, text)"""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10 * e2e.PATIENCE) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def samples(text):
    """{(name, labels): value}"""
    found = {}
    for line in text.splitlines():
        match = re.match(r"((?:switchml|process)_\w+)(\{.*\})? (\S+)$", line)
        assert match or line.startswith("# "), line
        if match:
            key = match.group(1), match.group(2) or ""
            assert key not in found, line
            found[key] = float(match.group(3))
    return found


def test_paths_and_methods():
    with daemon() as (process, port):
        for path, kind in {"/": "text/html", "/metrics": "text/plain", "/healthz": "text/plain", "/api/status": "application/json"}.items():
            status, headers, text = get(port, path)
            assert status == 200 and headers["Content-Type"].startswith(kind) and text, (path, status)
            assert "default-src 'none'" in headers["Content-Security-Policy"], path
            assert get(port, path, "HEAD")[0] == 200
            for method in "POST", "PUT", "DELETE", "OPTIONS":
                assert get(port, path, method)[0] == 405, (path, method)
        for path in "/nothing", "/metrics/", "/../etc/passwd", "//":
            assert get(port, path)[0] == 404, path
        assert json.loads(get(port, "/api/status?x=1")[2])["address"] == process.address
    wrong = subprocess.run([e2e.SWITCHMLD, "--listen", "127.0.0.1:0", "--http", "256.0.0.1:1"], env=e2e.environment(),
                           capture_output=True, text=True, check=False, timeout=20 * e2e.PATIENCE)
    assert wrong.returncode == 2 and "--http" in wrong.stderr, wrong
    with daemon() as (process, port), tempfile.TemporaryDirectory() as folder: # a second one cannot have the port
        port_file = os.path.join(folder, "port")
        taken = subprocess.run([e2e.SWITCHMLD, "--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}", "--port-file",
                                port_file], env=e2e.environment(), capture_output=True, text=True, check=False,
                               timeout=20 * e2e.PATIENCE)
        assert taken.returncode == 1 and "cannot serve HTTP on 127.0.0.1" in taken.stderr, taken
        assert not os.path.exists(port_file) # it says that everything is ready


def test_metrics_of_a_job():
    with daemon("--lanes", "2") as (process, port), job_at_work(process, SWITCHML_THREADS=2):
        first = samples(get(port, "/metrics")[2])
        sums = 'switchml_job_sums_total', next(labels for name, labels in first if name == "switchml_job_sums_total")
        # An answer serves for 0.25 s, or for ten times as long as it took to make.
        e2e.wait_until(lambda: samples(get(port, "/metrics")[2])[sums] > first[sums] > 0, "there are more sums")
        text = get(port, "/metrics")[2]
        second = samples(text)
        assert re.match(r'\{job_name="page[^"]*",key=""\}$', sums[1]), sums
        assert second["switchml_jobs", '{state="running"}'] == 1
        assert len([1 for name, _ in second if name == "switchml_rank_received_bytes_total"]) == 2
        assert len([1 for name, _ in second if name == "switchml_dropped_packets_total"]) >= 2 * 20
        if not shutil.which("promtool"):
            return
        check = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False)
        assert check.returncode == 0 and not check.stdout and not check.stderr, check


def test_aggregators_of_a_job():
    """Each of them names all, as addresses."""
    def of_a_job(at):
        jobs = json.loads(get(at, "/api/status")[2])["jobs"]
        return (jobs[0]["shard"], jobs[0]["shards"], jobs[0]["aggregators"]) if jobs else None
    with daemon() as (first, port), daemon() as (second, other_port):
        both = [first.address, second.address]
        with job_at_work(types.SimpleNamespace(address=",".join(both))):
            for shard, each in enumerate((port, other_port)):
                assert of_a_job(each) == (shard, 2, both)
        e2e.wait_until(lambda: of_a_job(port) is None, "the job has ended")
        with job_at_work(first):
            e2e.wait_until(lambda: of_a_job(port) == (0, 1, []), "a job of one aggregator")


def test_how_long_chunks_wait():
    """Rank 1 stops for 1.2 s while rank 0 fills its window: the histogram has it, and adds up. A window that a loaded
    machine's losses have made smaller may be without the slot that is looked at: then it stops again."""
    def waits():
        found = samples(get(port, "/metrics")[2])
        kinds = {kind: {labels: value for (name, labels), value in found.items() if name == f"switchml_job_chunk_wait_seconds_{kind}"}
                 for kind in ("bucket", "sum", "count")}
        buckets = {float(re.search('le="(.*?)"', labels).group(1)): value for labels, value in kinds["bucket"].items()}
        (total,), (num,) = kinds["sum"].values(), kinds["count"].values()
        assert list(buckets) == sorted(buckets) and list(buckets.values()) == sorted(buckets.values()), buckets
        assert len(buckets) == 21 and 0.000016 in buckets and buckets[float("inf")] == num, buckets
        return num - max(value for bound, value in buckets.items() if bound < 1), total, num
    with daemon() as (process, port), job_at_work(process, MEMBER_ELEMENTS=3000000) as members:
        e2e.wait_until(lambda: waits()[2] > 0, "chunks are measured")
        num_long, total, _ = waits()
        for _ in range(10):
            members[1].send_signal(signal.SIGSTOP)
            time.sleep(1.2)
            members[1].send_signal(signal.SIGCONT)
            time.sleep(0.3)
            if waits()[0] > num_long:
                break
        assert waits()[0] > num_long, "no stop is in the histogram"
        assert waits()[1] > total + 1, (total, waits())


def test_promtool_accepts_the_metrics():
    if not shutil.which("promtool"):
        raise tap.Skip("promtool is not installed (Debian: prometheus)")
    with daemon() as (_, port):
        check = subprocess.run(["promtool", "check", "metrics"], input=get(port, "/metrics")[2], text=True,
                               capture_output=True, check=False)
        assert check.returncode == 0 and not check.stdout and not check.stderr, check


def test_process_metrics():
    with daemon() as (process, port):
        found = {name: value for (name, _), value in samples(get(port, "/metrics")[2]).items() if name.startswith("process_")}
        pid = process.process.pid
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        assert 0.5 < found["process_resident_memory_bytes"] / resident < 2, (found, resident)
        assert abs(found["process_open_fds"] - len(os.listdir(f"/proc/{pid}/fd"))) <= 2, found
        assert abs(time.time() - found["process_start_time_seconds"]) < 10 * e2e.PATIENCE and found["process_cpu_seconds_total"] > 0, found
        time.sleep(0.4)  # until an answer is made anew
        again = samples(get(port, "/metrics")[2])["process_start_time_seconds", ""]
        assert again == found["process_start_time_seconds"], (again, found)  # a change of it means a restart
        assert found["process_max_fds"] > found["process_open_fds"] and found["process_virtual_memory_bytes"] > resident, found


def test_health():
    """A load balancer's question: yes while the daemon works, no while its control thread or an engine hangs."""
    with daemon() as (process, port):
        status, _, text = get(port, "/healthz")
        assert status == 200 and text == "switchmld serves 0 jobs\n", (status, text)
        libc, (seize, interrupt, detach) = ctypes.CDLL(None, use_errno=True), (0x4206, 0x4207, 17)
        tasks = {}
        for task in os.listdir(f"/proc/{process.process.pid}/task"):
            with open(f"/proc/{process.process.pid}/task/{task}/comm", encoding="ascii") as file:
                tasks[file.read().strip()] = int(task)
        for hung in (tasks["sml-aggd"], next(task for name, task in tasks.items() if name.startswith("sml-agg-"))):
            if libc.ptrace(seize, hung, None, None) != 0:
                raise tap.Skip(f"no thread may be stopped here: {os.strerror(ctypes.get_errno())}")
            try:
                libc.ptrace(interrupt, hung, None, None)
                os.waitpid(hung, 0x40000000) # __WALL
                e2e.wait_until(lambda: get(port, "/healthz")[0] == 503, "the last answer is old")
                for _ in range(2): # the control thread waits for the engine when the second one comes
                    status, _, text = get(port, "/healthz")
                    assert status == 503 and "its control thread hangs, or waits for an engine that does" in text, (status, text)
            finally:
                libc.ptrace(detach, hung, None, None)
            e2e.wait_until(lambda: get(port, "/healthz")[0] == 200, "it answers again")


def test_alerts():
    if not shutil.which("promtool"):
        raise tap.Skip("promtool is not installed (Debian: prometheus)")
    with daemon() as (process, port), job_at_work(process):
        known = set(re.findall(r"^# TYPE (switchml_\w+)", get(port, "/metrics")[2], re.MULTILINE))
    with open(RULES, encoding="utf-8") as file:
        asked = set(re.findall(r"\bswitchml_\w+", "".join(line for line in file if "expr:" in line)))
    assert asked and asked <= known, asked - known
    with open(os.path.join(HERE, "alerts.yml"), encoding="utf-8") as file, tempfile.NamedTemporaryFile("w", suffix=".yml") as story:
        story.write(file.read().replace("RULES", RULES))
        story.flush()
        run = subprocess.run(["promtool", "test", "rules", story.name], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


NGINX = """daemon off; pid {folder}/pid; error_log stderr;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder};
  scgi_temp_path {folder};
{server}}}
"""


def test_behind_a_proxy():
    """The server of docs/operating.md: TLS and a password before the page."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if not nginx or not shutil.which("openssl"):
        raise tap.Skip("nginx and openssl are not installed")
    with open(os.path.join(os.path.dirname(HERE), "docs", "operating.md"), encoding="utf-8") as file:
        server = re.search(r"```nginx\n(.*?)```", file.read(), re.DOTALL).group(1)
    with daemon() as (_, port), tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as reserved:
        own = reserved.getsockname()[1]
        reserved.close()
        server = (server.replace("listen 443", f"listen 127.0.0.1:{own}").replace("127.0.0.1:9477", f"127.0.0.1:{port}")
                  .replace("/etc/switchml", folder))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=agg.example.org", "-days", "1",
                        "-keyout", f"{folder}/http.key", "-out", f"{folder}/http.crt"], check=True, capture_output=True)
        password = subprocess.run(["openssl", "passwd", "-apr1", "secret"], check=True, capture_output=True, text=True).stdout
        os.chmod(folder, 0o755)
        for name, text in {"http.users": f"operator:{password}", "conf": NGINX.format(folder=folder, server=server)}.items():
            with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                file.write(text)
        proxy = subprocess.Popen([nginx, "-c", f"{folder}/conf"], env=e2e.environment(), stderr=subprocess.PIPE, text=True)
        try:
            def answer(path, *more):
                return subprocess.run(["curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", *more, f"https://127.0.0.1:{own}{path}"],
                                      capture_output=True, text=True, check=False).stdout
            e2e.wait_until(lambda: proxy.poll() is not None or answer("/") != "000", "nginx answers")
            assert proxy.poll() is None, proxy.stderr.read()
            assert answer("/api/status") == "401" and answer("/api/status", "-u", "operator:wrong") == "401"
            for path in "/", "/api/status", "/metrics":
                assert answer(path, "-u", "operator:secret", "-H", "Host: agg.example.org") == "200", path
        finally:
            proxy.terminate()
            proxy.communicate()


def test_one_name_twice_is_one_series():
    """A job that ends, and the next of its name that is being joined."""
    with daemon() as (process, port):
        ending = [peer.Member(process.port, rank, 2, job_name="again") for rank in range(2)]
        peer.join_all(ending)
        ending[1].control.close()
        e2e.wait_until(lambda: "rank_lost" in process.text(), "the rank is lost")
        joining = peer.Member(process.port, 1, 2, job_name="again")
        joining.connect()
        joining.say_join()
        joining.hear_welcome()
        assert len(json.loads(get(port, "/api/status")[2])["jobs"]) == 2
        found = samples(get(port, "/metrics")[2]) # which finds doubles
        assert found["switchml_job_world_size", '{job_name="again",key=""}'] == 2
        joining.close()
        ending[0].close()


def test_dashboard_asks_for_metrics_that_there_are():
    with open(DASHBOARD, encoding="utf-8") as file:
        dashboard = json.load(file)
    with daemon() as (process, port), job_at_work(process):
        text = get(port, "/metrics")[2]
    known = set(re.findall(r"^(switchml_\w+)", text, re.MULTILINE))
    labels = set(re.findall(r"[{,](\w+)=", text)) | {"instance"}
    asked, events = set(), set(re.findall(r'event="(\w+)"', text))
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\bswitchml_\w+", target["expr"])
            assert names, target
            asked.update(names)
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target
            assert set(re.findall(r'event="(\w+)"', target["expr"])) <= events, target
            for inside in re.findall(r"\{([^}]*)\}", target["expr"]):
                assert set(re.findall(r"(\w+)=", inside)) <= labels, target
    assert asked <= known and len(asked) >= 10, asked - known
    assert {panel["id"] for panel in dashboard["panels"]} == set(range(1, len(dashboard["panels"]) + 1))


def test_clients_that_disturb():
    with daemon() as (process, port), job_at_work(process) as members:
        def operations():
            status, _, text = get(port, "/api/status")
            assert status == 200, (status, text)
            return json.loads(text)["jobs"][0]["sums"]

        def has_gone_on():
            # Connections beyond those a host may have are reset, ours too until the daemon has got rid of the 300.
            with contextlib.suppress(ConnectionError):
                return operations() > before
            return False
        before = operations()
        stalled = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        for number, connection in enumerate(stalled):
            connection.sendall([b"GET /api/status HTTP/1.1\r\nHost: x\r\n", b"\0\xff" * 50, b"GET " + b"/" * 9000][number % 3])
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n") # and does not read
        e2e.wait_until(has_gone_on, "HTTP answers, and the job goes on")
        for connection in stalled:
            connection.close()
        assert all(member.process.poll() is None for member in members)


def test_without_descriptors_it_waits():
    """A guest that cannot be accepted stays ready: nothing spins at it, and it is served when there is room."""
    with daemon() as (process, port):
        pid = process.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), before[1]))
        with socket.create_connection(("127.0.0.1", port)) as guest:
            guest.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            ticks, began = e2e.cpu_ticks(pid), time.monotonic()
            time.sleep(1)
            used_s = (e2e.cpu_ticks(pid) - ticks) / os.sysconf("SC_CLK_TCK")
            assert used_s < 0.15 * (time.monotonic() - began), used_s
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            guest.settimeout(10 * e2e.PATIENCE)
            assert guest.recv(100).startswith(b"HTTP/1")


def is_gone(connection):
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError: # there is nothing yet
        return False
    except OSError:
        return True


def test_a_request_has_an_age():
    """A byte now and then keeps no connection: patience is for the whole request, not for the next byte."""
    with daemon() as (_, port):
        dripping = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        began = time.monotonic()
        text = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Wait: " + b"x" * 10000
        for byte in text:
            dripping = [connection for connection in dripping if not is_gone(connection)]
            if not dripping:
                break
            for connection in dripping:
                with contextlib.suppress(OSError):
                    connection.send(bytes([byte]), socket.MSG_DONTWAIT)
            assert time.monotonic() - began < 60 * e2e.PATIENCE, "dripping connections stay"
            time.sleep(0.2)
        assert time.monotonic() - began > 5
        assert get(port, "/metrics")[0] == 200


def test_one_address_leaves_room():
    """However many connections an address holds, and from wherever they come: a request is answered at once."""
    with daemon() as (_, port):
        held = []
        for number in range(200):
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                held[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
            if number % 10 == 0:
                assert get(port, "/metrics")[0] == 200, number
        for number in range(2, 200): # each of these is a host of its own
            with contextlib.suppress(OSError):
                held.append(socket.create_connection(("127.0.0.1", port), 5, (f"127.0.0.{number}", 0)))
                held[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert get(port, "/metrics")[0] == 200
        for connection in held:
            connection.close()


def ask_for(port, *hosts):
    """(status, text) of a request with these Host fields."""
    with socket.create_connection(("127.0.0.1", port), timeout=10 * e2e.PATIENCE) as connection:
        fields = "".join(f"Host: {host}\r\n" for host in hosts)
        connection.sendall(f"GET /api/status HTTP/1.0\r\n{fields}\r\n".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, text = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]), text


def test_pages_of_others_cannot_read_the_status():
    """Whoever gives a name of its own our address (DNS rebinding) has browsers ask us by that name."""
    with daemon("--http-host", "agg,agg.example.org") as (_, port):
        for host in "evil.example", f"evil.example:{port}", "agg.evil.example", "127.0.0.1.evil.example", "0":
            status, text = ask_for(port, host)
            assert status == 421 and "--http-host" in text and "address" in text, (host, status, text)
        for host in "127.0.0.1", f"127.0.0.1:{port}", "[::1]", "localhost", f"agg:{port}", "AGG.example.org":
            status, text = ask_for(port, host)
            assert status == 200 and json.loads(text)["jobs"] == [], (host, status, text)
        assert ask_for(port)[0] == 200
        for hosts in ("agg", "evil.example"), ("evil.example", "agg"), ("agg", ""): # whichever a proxy looks at
            assert ask_for(port, *hosts)[0] == 421, hosts
    with daemon() as (_, port):
        assert ask_for(port, "agg")[0] == 421
    wrong = subprocess.run([e2e.SWITCHMLD, "--listen", "127.0.0.1:0", "--http-host", "agg:9477"], env=e2e.environment(),
                           capture_output=True, text=True, check=False, timeout=20 * e2e.PATIENCE)
    assert wrong.returncode == 2 and "--http-host" in wrong.stderr and "ports" in wrong.stderr, wrong


if __name__ == "__main__":
    tap.main(globals())

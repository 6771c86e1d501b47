"""The files of packaging/monitoring against a server: every metric that the dashboard names is one of /metrics, and, where Prometheus is
installed, scraping with prometheus.yml gives each of its queries an answer.

monitoring_test.py names|queries LFM2_STAGE MPIEXEC SHARDS
"""
import argparse
import http.client
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

from server import Server, check

MONITORING = pathlib.Path(__file__).resolve().parents[2] / "packaging/monitoring"
LIMIT = 60  # seconds until Prometheus has answers
# Without a request that drafts there are none to divide by.
EMPTY = "spec_decode"


def queries():
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    return [(panel["title"], target["expr"].replace("$__rate_interval", "10s")) for panel in dashboard["panels"] for target in panel["targets"]]


def ask(address, method, path, body=None):
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def complete(address):
    status, text = ask(address, "POST", "/v1/completions", {"prompt": [1, 5, 7], "max_tokens": 8, "ignore_eos": True})
    check(status == 200, text)


def test_names(server):
    complete(server.address)
    names = set(re.findall(r"^(lfm2_\w+)", ask(server.address, "GET", "/metrics")[1], re.MULTILINE))
    wanted = {name for _, query in queries() for name in re.findall(r"lfm2_\w+", query)}
    check(wanted and wanted <= names, f"the dashboard names what /metrics has not: {sorted(wanted - names)}")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_queries(server):
    with tempfile.TemporaryDirectory(prefix="lfm2-prometheus-") as folder:
        config = (MONITORING / "prometheus.yml").read_text()
        check("localhost:8000" in config and "scrape_interval: 5s" in config, "prometheus.yml has another target")
        config = config.replace("localhost:8000", "{}:{}".format(*server.address)).replace("scrape_interval: 5s", "scrape_interval: 1s")
        pathlib.Path(folder, "prometheus.yml").write_text(config)
        port = free_port()
        prometheus = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                       f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            left, end = queries(), time.monotonic() + LIMIT
            while left and time.monotonic() < end:
                complete(server.address)
                time.sleep(0.5)
                left = [one for one in left if not has_answer(port, *one)]
            check(not left, f"queries without an answer: {left}")
        finally:
            prometheus.kill()
            prometheus.wait()


def has_answer(port, title, query):
    try:
        status, text = ask(("127.0.0.1", port), "GET", "/api/v1/query?" + urllib.parse.urlencode({"query": query}))
    except OSError:  # it does not listen yet
        return False
    if status == 503:
        return False
    check(status == 200, f"{title}: {query}: {text}")
    values = [one["value"][1] for one in json.loads(text)["data"]["result"]]
    return bool(values) and (EMPTY in query or "NaN" not in values)


def main():
    kind, stage, mpirun, shards = sys.argv[1:]
    if kind == "queries" and not shutil.which("prometheus"):
        print("SKIPPED: no prometheus here (the Debian package prometheus)")
        return 77
    with Server(argparse.Namespace(stage=stage, mpirun=mpirun, shards=shards, ranks=1)) as server:
        {"names": test_names, "queries": test_queries}[kind](server)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Clients of other makes against the HTTP server: Python's http.client, and curl where it is installed.

    http_clients.py PROGRAM    # the test's server, tests/support/http_server_main.cpp
"""
import http.client, json, os, shutil, subprocess, sys, tempfile, time, unittest

PROGRAM = sys.argv.pop(1)
KEY = "a-key"


class Served(unittest.TestCase):
    keys = []

    def setUp(self):
        self.log = tempfile.TemporaryFile()
        self.server = subprocess.Popen([PROGRAM, *self.keys], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.port = int(self.server.stdout.readline())
        self.url = f"http://localhost:{self.port}"

    def tearDown(self):
        self.server.stdin.close()
        self.assertEqual(self.server.wait(30), 0)
        self.server.stdout.close()
        self.log.seek(0)
        self.records = [json.loads(line) for line in self.log]
        self.log.close()
        for record in self.records:
            self.assertEqual(set(record), {"time", "id", "peer", "method", "path", "status", "bytes", "seconds", "complete"})
            self.assertNotIn("?", record["path"])

    def client(self):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self.addCleanup(client.close)
        return client


class HttpClientTest(Served):
    def test_one_connection(self):
        client = self.client()
        for body in b"abc", os.urandom(1 << 20):
            client.request("POST", "/echo?secret", body)
            answer = client.getresponse()
            self.assertEqual((answer.status, answer.read()), (200, body))
        client.request("POST", "/echo", iter([b"in", b"pieces"]), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
        self.assertEqual(client.getresponse().read(), b"inpieces")
        client.request("HEAD", "/health", headers={"X-Request-Id": "mine"})
        answer = client.getresponse()
        self.assertEqual((answer.read(), answer.getheader("X-Request-Id")), (b"", "mine"))
        client.request("PUT", "/echo", b"x" * 100)
        answer = client.getresponse()
        self.assertEqual((answer.status, answer.getheader("Allow")), (405, "OPTIONS, POST"))
        self.assertEqual(json.loads(answer.read())["error"]["code"], 405)

    def test_events(self):
        client = self.client()
        client.request("GET", "/events")
        answer = client.getresponse()
        self.assertEqual(answer.getheader("Content-Type"), "text/event-stream; charset=utf-8")
        self.assertEqual(answer.readline(), b"data: 0\n")  # long before the last one
        self.assertTrue(answer.read().endswith(b"data: 19\n\ndata: [DONE]\n\n"))
        client.request("GET", "/health")
        self.assertEqual(json.loads(client.getresponse().read()), {"gone": 0})

    def test_leaving(self):
        leaver, client = self.client(), self.client()
        leaver.request("GET", "/events")
        answer = leaver.getresponse()
        answer.readline()
        answer.close()
        leaver.close()
        for _ in range(500):
            client.request("GET", "/health")
            gone = json.loads(client.getresponse().read())["gone"]
            if gone:
                break
            time.sleep(0.01)
        self.assertEqual(gone, 1)

    def test_large_body(self):
        client = self.client()
        try:
            client.request("POST", "/echo", b"x" * (5 << 20))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the answer is there before all was sent
        self.assertEqual(client.getresponse().status, 413)

    def test_pages_from_elsewhere(self):
        for headers in {"Host": "evil.example"}, {"Origin": "http://evil.example"}:
            client = self.client()
            client.request("GET", "/health", headers=headers)
            self.assertEqual(client.getresponse().status, 403)


class KeyTest(Served):
    keys = [KEY]

    def test_key(self):
        client = self.client()
        for path, key, status in ("/events", "", 401), ("/events", "b-key", 401), ("/events", KEY, 200), ("/health", "", 200):
            client.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
            answer = client.getresponse()
            answer.read()
            self.assertEqual((path, key, answer.status), (path, key, status))


@unittest.skipUnless(shutil.which("curl"), "no curl")
class CurlTest(Served):
    def curl(self, *arguments, body=None):
        done = subprocess.run(["curl", "-sS", "--max-time", "30", "--noproxy", "*", *arguments], input=body, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_one_connection(self):
        out = self.curl("-w", "%{num_connects} ", "-d", "one", f"{self.url}/echo", "-d", "two", f"{self.url}/echo")
        self.assertEqual(out, b"one&two1 one&two0 ")

    def test_bodies(self):
        body = os.urandom(3 << 20)
        for how in ["-H", "Expect: 100-continue"], ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect:"], ["--http1.0"]:
            self.assertEqual(self.curl(*how, "--data-binary", "@-", f"{self.url}/echo", body=body), body, how)
        out = self.curl("-H", "Expect: 100-continue", "-w", "%{http_code} %{size_upload}", "-o", "/dev/null", "--data-binary", "@-",
                        f"{self.url}/echo", body=b"x" * (5 << 20))
        self.assertEqual(out, b"413 0", "refused before the body was sent")

    def test_head_and_options(self):
        self.assertIn(b"\r\nContent-Length: 10\r\n", self.curl("-I", f"{self.url}/health"))
        self.assertIn(b"\r\nAllow: OPTIONS, POST\r\n", self.curl("-i", "-X", "OPTIONS", f"{self.url}/echo"))

    def test_events(self):
        self.assertEqual(self.curl("-N", f"{self.url}/events").count(b"data: "), 21)


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    # 77: something was skipped, and all else is well.
    sys.exit(0 if result.wasSuccessful() and not result.skipped else 77 if result.wasSuccessful() else 1)

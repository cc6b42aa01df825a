"""A worker for Holdfast jobs in Python's standard library alone.

Usage: HOLDFAST_URL=http://127.0.0.1:4170/ HOLDFAST_TOKEN=... python3 worker.py QUEUE [--once]

With --once it ends when the queue is empty. A worker that dies loses nothing: its lease ends, and the job runs again.
"""

import http.client
import json
import os
import socket
import sys
import threading
from urllib.parse import urlsplit

LEASE_SECONDS = 30
WAIT_SECONDS = 20


class Holdfast:
    """Calls of the HTTP API on one connection that stays open. Each thread needs its own."""

    def __init__(self, url, token):
        parts = urlsplit(url)
        self.path = parts.path.rstrip("/")
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT_SECONDS + 30)

    def post(self, path, body):
        self.connection.request("POST", f"{self.path}/api/v1{path}", json.dumps(body), self.headers)
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        if response.status == 200:
            return answer
        error = answer["error"]
        raise (LeaseLost if response.status == 409 else RuntimeError)(f"{error['code']}: {error['message']} {error['hint']}")


class LeaseLost(Exception):
    """Another worker may have the job: this attempt's outcome was not written."""


class Renewal:
    """Renews a lease on a connection of its own until the job has ended."""

    def __init__(self, url, secret, token):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(url, secret, token), daemon=True)

    def run(self, url, secret, token):
        while not self.over.wait(LEASE_SECONDS / 3):
            try:
                Holdfast(url, secret).post("/claims/renew", {"token": token, "lease": f"{LEASE_SECONDS}s"})
            except LeaseLost:
                return
            except Exception as error:  # The server may be back before the lease ends.
                print(error, file=sys.stderr)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()


def work(url, secret, queue, handle, once=False):
    """Runs `handle(job)` for each job of the queue. Returns how many succeeded."""
    holdfast = Holdfast(url, secret)
    worker = f"{socket.gethostname()}:{os.getpid()}"
    succeeded = 0
    while True:
        wait = {} if once else {"wait": f"{WAIT_SECONDS}s"}
        claim = holdfast.post("/claims", {"queue": queue, "worker": worker, "lease": f"{LEASE_SECONDS}s", **wait})["claim"]
        if claim is None:
            if once:
                return succeeded
            continue
        token = claim["token"]
        try:
            with Renewal(url, secret, token):
                output = handle(claim["job"])
            outcome = {"token": token, "outcome": "succeeded", "output": output}
        except Exception as error:  # A failed job is retried by its own rules.
            outcome = {"token": token, "outcome": "failed", "error": {"name": type(error).__name__, "message": str(error)}}
        try:
            holdfast.post("/claims/settle", outcome)
            succeeded += outcome["outcome"] == "succeeded"
        except LeaseLost as lost:
            print(lost, file=sys.stderr)


def shout(job):
    text = job["input"]["text"]
    if not isinstance(text, str):
        raise ValueError("the text is not a string")
    return {"text": text.upper()}


if __name__ == "__main__":
    done = work(os.environ["HOLDFAST_URL"], os.environ["HOLDFAST_TOKEN"], sys.argv[1], shout, once="--once" in sys.argv)
    print(f"{done} jobs succeeded")

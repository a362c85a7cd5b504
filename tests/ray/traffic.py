"""Streams answers over HTTP and compares them with those of an undisturbed run."""

import http.client
import itertools
import json
import threading
import time
from typing import Any

NUM_REQUESTS, NUM_STREAMS, NUM_TOKENS = 8, 4, 200
# Between two answers of a stream: what is started meanwhile needs the same cores.
PAUSE_S = 1.0
PROMPTS = ("t1 t2 t3 " * 20, "t4 t5 " * 10, "t7 t8 t9 t10", "t11 t12 t1 t2 " * 8)


def body_of(number: int) -> dict[str, Any]:
    """Greedy, and with seeds."""
    sampling = {"temperature": 0.8 * (number % 2), "seed": number, "max_tokens": NUM_TOKENS, "ignore_eos": True}
    return {"prompt": PROMPTS[number // 2], "stream": True, **sampling}


class Traffic:
    def __init__(self, gateway: str, num_streams: int = NUM_STREAMS) -> None:
        self._gateway = gateway
        self._expected = [self._answer(number) for number in range(NUM_REQUESTS)]
        assert len(set(self._expected)) == NUM_REQUESTS, "answers that can't be told apart"
        self.num_answers, self.failures = 0, list[str]()
        # Longest pause of a stream since it was last asked.
        self._gap_s = 0.0
        self._is_over = False
        self._threads = [threading.Thread(target=self._work, args=(first,)) for first in range(num_streams)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def take_gap_s(self) -> float:
        gap_s, self._gap_s = self._gap_s, 0.0
        return gap_s

    def _work(self, first: int) -> None:
        for number in itertools.count(first * 3):
            if self._is_over:
                return
            try:
                answer = self._answer(number % NUM_REQUESTS)
            except (OSError, http.client.HTTPException, AssertionError) as error:
                answer = repr(error)
            self.num_answers += 1
            if answer != self._expected[number % NUM_REQUESTS]:
                self.failures.append(answer[-300:])
            time.sleep(PAUSE_S)

    def _answer(self, number: int) -> str:
        connection = http.client.HTTPConnection(self._gateway, timeout=120)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body_of(number)), headers)
            response = connection.getresponse()
            text, last_s = "", time.monotonic()
            for line in response:
                now_s = time.monotonic()
                self._gap_s, last_s = max(getattr(self, "_gap_s", 0.0), now_s - last_s), now_s
                if line.startswith(b"data: {"):
                    event = json.loads(line.removeprefix(b"data: "))
                    text += "".join(choice["text"] for choice in event["choices"])
                elif line.startswith(b"data: [DONE]"):
                    return text
            raise AssertionError(f"status {response.status}, broken off after {text[-50:]!r}")
        finally:
            connection.close()

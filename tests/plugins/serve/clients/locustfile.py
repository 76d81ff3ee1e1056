"""A user of a server for locust: completions and streamed chats, of the base and of an adapter."""

import os

from locust import HttpUser, constant, task

MODELS = os.environ["MODELS"].split(",")


class User(HttpUser):
    """Asks again as soon as it has its answer."""

    wait_time = constant(0)

    @task(2)
    def complete(self) -> None:
        """Complete a prompt."""
        for model in MODELS:
            body = {"model": model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
            with self.client.post("/v1/completions", json=body, catch_response=True) as response:
                if response.json()["usage"]["completion_tokens"] != 8:
                    response.failure("not 8 tokens")

    @task
    def stream(self) -> None:
        """Stream a chat."""
        body = {"model": MODELS[0], "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": True}
        with self.client.post("/v1/chat/completions", json=body, stream=True, catch_response=True) as response:
            lines = [line for line in response.iter_lines() if line.startswith(b"data: ")]
            if lines[-1] != b"data: [DONE]":
                response.failure("no end mark")

"""The image, built and run, and the compose file as a platform behind TLS sees it.

It takes minutes, root and podman, and Debian's packages for the images beside ours, or BASE_TAR, a root file
system that has Python, Redis, PostgreSQL and nginx:

    .venv/bin/python -m pytest -m long tests/deploy/test_image.py
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from tests.deploy.containers import OURS, SERVERS, Containers, require_podman
from tests.peers.fake_upstream import (
    HANG,
    HEAD,
    ROLE,
    Received,
    Step,
    by_default,
    chunk,
    delta,
    sse,
    stream_of,
)
from tests.test_container import FINAL, PROJECT
from tests.waiting import awaited, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

Messages = list[dict[str, Any]]


def spoken(request: Received) -> bool:
    """Whether it is a turn: work in the background wants no stream."""
    return request.method == "POST" and request.json.get("stream") is True


def speak(request: Received) -> list[Step]:
    """Repeats what it heard; a story never ends."""
    if not spoken(request):
        return list(by_default(request))
    heard = str(request.json["messages"][-1]["content"])
    if "story" in heard:
        return [HEAD, chunk(ROLE + delta(content="Once upon a time")), HANG]
    return sse(stream_of("Heard: ", heard))


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    require_podman()
    with Containers(tmp_path_factory.mktemp("containers")) as containers:
        containers.model.script = speak
        yield containers


class Caller:
    """A call by OpenAI's SDK over TLS, whose platform replays the heard words."""

    def __init__(self, containers: Containers, session: str, user: str = "ann") -> None:
        self._containers = containers
        self._options: dict[str, Any] = {"extra_headers": {"X-Session-Id": session}, "user": user}
        self.session = session
        self.window: Messages = []

    def turn(self, words: str) -> str:
        """A turn that is answered to its end."""
        self.window.append({"role": "user", "content": words})
        answer = "".join(self.pieces())
        self.window.append({"role": "assistant", "content": answer})
        return answer

    def pieces(self) -> Iterator[str]:
        """The answer to the window, as it comes."""
        http = openai.DefaultHttpxClient(verify=self._containers.trust, trust_env=False)
        with (
            self._containers.on(),
            openai.OpenAI(
                base_url="https://localhost/v1",
                api_key=self._containers.key,
                http_client=http,
                max_retries=0,
                timeout=30,
            ) as client,
        ):
            messages: Any = self.window
            with client.chat.completions.create(
                model="fake", messages=messages, stream=True, **self._options
            ) as stream:
                for piece in stream:
                    if piece.choices and (content := piece.choices[0].delta.content):
                        yield content

    def remembered(self) -> list[str]:
        return [one["content"] for one in get(self._containers, f"sessions/{self.session}")["contents"]]


def get(containers: Containers, path: str) -> Any:
    with containers.on(), containers.client() as client:
        answer = client.get(f"https://localhost/v1/memory/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def shown(containers: Containers) -> list[str]:
    """What the model was shown last."""
    newest = next(filter(spoken, reversed(containers.model.requests)))
    return [message["content"] for message in newest.json["messages"]]


def test_the_image_is_what_its_dockerfile_says(containers: Containers) -> None:
    (image,) = json.loads(containers.podman("image", "inspect", "localhost/turnkeeper"))
    assert image["Labels"].items() >= FINAL.labels.items()
    inside = containers.in_container
    assert re.fullmatch(
        rf"turnkeeper {PROJECT['version']} \(CPython 3\.\d+\.\d+\b.*\)",
        inside("server-1", "turnkeeper", "--version"),
    )
    assert inside("server-1", "id", "-u") == FINAL.last("USER").rest.partition(":")[0]
    closed = 'for path in /app /venv /usr; do touch "$path/x" 2>/dev/null && echo "$path"; done; touch /tmp/x'
    assert inside("server-1", "sh", "-c", closed) == ""
    # Each start would compile what nobody may write.
    compiled = (
        "import asyncio.events as a, json.decoder as j, msgspec, os, proxy.cli as p, typing as t, sys;"
        "print([m.__name__ for m in (a, j, p, t) if not os.path.exists(m.__cached__)])"
    )
    assert inside("server-1", "python", "-c", compiled) == "[]"
    assert inside("server-1", "sh", "-c", "command -v pip || echo none") == "none"


def test_each_session_is_at_one_server_and_the_page_and_metrics_are_as_they_should_be(
    containers: Containers,
) -> None:
    callers = [Caller(containers, f"apart-{number}", f"user-{number}") for number in range(12)]
    for words in ("One.", "Two."):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(Caller.turn, callers, [words] * len(callers)))
        assert answers == [f"Heard: {words}"] * len(callers)
    seen = {server: set(re.findall(r"session=(apart-\d+)\b", containers.log(server))) for server in SERVERS}
    assert seen["server-1"] and seen["server-2"]
    assert not seen["server-1"] & seen["server-2"]
    with containers.on(), containers.client() as client:
        assert client.get("https://localhost/metrics").status_code == 404
        assert client.get("https://localhost/v1/models").status_code == 200
        refused = client.get("https://localhost/v1/models", headers={"Authorization": "Bearer wrong"})
        assert refused.status_code == 401
    plain = containers.run(
        "curl",
        "-sS",
        "--noproxy",
        "*",
        "--cacert",
        containers.deploy / "tls/cert.pem",
        "-w",
        "%{http_version}",
        "-o",
        "/dev/null",
        "https://localhost/healthz",
    )
    assert plain.stdout == "2", plain.stderr


def test_a_call_goes_on_through_an_interruption_the_loss_of_its_server_and_a_restart_of_all(
    containers: Containers,
) -> None:
    caller = Caller(containers, "call-7")
    assert caller.turn("My dog is called Rex.") == "Heard: My dog is called Rex."

    caller.turn("Say something long.")
    caller.window[-1] = {
        "role": "assistant",
        "content": "Heard: Say",
        "metadata": {"interrupted": True, "original": "Heard: Say something long."},
    }
    caller.turn("Stop.")
    assert any("Heard: Say [interrupted here" in line for line in shown(containers))

    # Its server is killed while it speaks, as where the machine fails.
    caller.window.append({"role": "user", "content": "Tell me a story."})
    pieces = caller.pieces()
    assert next(pieces) == "Once upon a time"
    (carrying,) = [name for name in SERVERS if "session=call-7" in containers.log(name)]
    killed = containers.kill(carrying)
    with pytest.raises((openai.APIError, httpx2.TransportError)):
        list(pieces)
    assert next(filter(spoken, reversed(containers.model.requests))).closed.wait(5)
    caller.window[-1] = {"role": "user", "content": "Are you still there?"}
    assert caller.turn("I am here.") == "Heard: I am here."
    assert shown(containers)[0].endswith("My dog is called Rex.")
    other = next(name for name in SERVERS if name != carrying)
    assert "session=call-7" in containers.log(other)

    # It comes back by itself, and has its sessions again.
    assert until(lambda: containers.first_process(carrying) not in (0, killed), 60)
    assert until(lambda: containers.is_healthy(carrying), 60), containers.log(carrying)
    caller.turn("And now?")

    before = caller.remembered()
    assert before[:2] == ["My dog is called Rex.", "Heard: My dog is called Rex."]
    assert before[-2:] == ["And now?", "Heard: And now?"]
    assert [containers.stop(name) for name in OURS] == [0, 0, 0]
    containers.compose("down")
    containers.up()
    assert caller.remembered() == before
    # The platform has lost all but the newest words: memory has not.
    caller.window = []
    caller.turn("Who am I?")
    assert shown(containers)[-len(before) - 1 :][:1] == [before[0]]
    assert caller.remembered() == [*before, "Who am I?", "Heard: Who am I?"]

    found = awaited(lambda: search(containers, "ann", "What is my dog called?"))
    assert any("Rex" in one["text"] for one in found)


def search(containers: Containers, user: str, query: str) -> Messages:
    with containers.on(), containers.client() as client:
        answer = client.post("https://localhost/v1/memory/search", json={"user": user, "query": query})
    assert answer.status_code == 200, answer.text
    return [one for one in answer.json()["results"] if one["kind"] == "turn"]


def test_no_turn_fails_while_one_server_after_the_other_is_stopped_and_started(
    containers: Containers,
) -> None:
    callers = [Caller(containers, f"through-{number}", f"user-{number}") for number in range(6)]
    with ThreadPoolExecutor(len(callers)) as pool:
        for server in SERVERS:
            stopping = pool.submit(restart, containers, server)
            while not stopping.done():
                list(pool.map(lambda caller: caller.turn("On and on."), callers[1:]))
            assert stopping.result() == 0, containers.log(server)[-3000:]
    for caller in callers[1:]:
        assert caller.remembered() == [message["content"] for message in caller.window]


def restart(containers: Containers, server: str) -> int:
    status = containers.stop(server)
    containers.start(server)
    return status


def test_no_log_has_anything_that_nobody_expected(containers: Containers) -> None:
    for name in OURS:
        log = containers.log(name)
        assert not re.search("Traceback|never retrieved|CRITICAL", log), log
        assert containers.key not in log

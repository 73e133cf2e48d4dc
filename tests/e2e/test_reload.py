"""A new configuration is taken over whole, or not at all, and no call notices."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme

from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, chunk, delta
from tests.serving_process import ServingProcess
from tests.waiting import until

CONFIG = """
listen: {port: "${PORT}"}
upstreams:
  main: {base_url: "URL"}
pipelines:
  default: {upstreams: [main], model: MODEL}
"""
# An error that nobody who reads a configuration has reckoned with.
ODD = """
class Odd(Exception):
    def __str__(self):
        raise {}("it cannot even say so")

raise Odd
"""


def config(upstream: FakeUpstream, model: str) -> str:
    return CONFIG.replace("URL", upstream.url).replace("MODEL", model)


class Serving(ServingProcess):
    """One that starts with the model ``one`` of an upstream."""

    def __init__(self, folder: Path, upstream: FakeUpstream, *options: str) -> None:
        super().__init__(folder, config(upstream, "one"), *options)
        self.upstream = upstream

    def write(self, text: str = "", model: str = "") -> None:
        self.path.write_text(text or config(self.upstream, model))

    def model(self) -> str:
        """Which model a call goes to."""
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        assert self.client.post("/v1/chat/completions", json=body).status_code == 200
        return self.upstream.last.json["model"]

    def goes_to(self, upstream: FakeUpstream) -> bool:
        """Whether a call reaches this upstream."""
        self.chat()
        return bool(upstream.requests)


def asked(serving: ServingProcess, key: str) -> int:
    """The status that a key gets over a connection of its own."""
    return httpx2.get(
        f"{serving.root}/v1/models", headers={"Authorization": f"Bearer {key}"}, timeout=10
    ).status_code


Start = Callable[..., Serving]


@pytest.fixture
def start(tmp_path: Path, upstream: FakeUpstream) -> Iterator[Start]:
    with ExitStack() as started:
        yield lambda *options: started.enter_context(Serving(tmp_path, upstream, *options))


def test_a_hang_up_signal_takes_a_new_configuration_over(start: Start) -> None:
    serving = start()
    assert serving.model() == "one"
    serving.write(model="two")
    assert serving.model() == "one"
    serving.hang_up()
    assert until(lambda: serving.model() == "two")
    assert serving.process.poll() is None


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
@pytest.mark.parametrize("error", ["RuntimeError", "SystemExit"])
def test_whatever_goes_wrong_while_it_is_read_the_old_one_stays(
    start: Start, options: tuple[str, ...], error: str
) -> None:
    serving = start(*options)
    assert until(lambda: len(serving.members) == max(1, len(options)))
    before = serving.members
    (serving.path.parent / "odd.py").write_text(ODD.format(error))
    serving.write(f"filters: [odd.py]\n{config(serving.upstream, 'two')}")
    serving.hang_up()
    assert until(lambda: "The new configuration is not used" in serving.log)
    assert f"{error}: it cannot even say so" in serving.log
    assert "never retrieved" not in serving.log
    assert until(lambda: serving.members == before)
    assert (serving.process.poll(), serving.model()) == (None, "one")
    serving.write(model="three")
    serving.hang_up()
    assert until(lambda: serving.model() == "three")


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_a_key_that_stands_in_a_file_is_changed_by_a_hang_up_signal(
    tmp_path: Path, upstream: FakeUpstream, options: tuple[str, ...]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("agora:old\n")
    written = config(upstream, "one") + 'keys: "${TURNKEEPER_KEYS:-}"\n'
    with ServingProcess(
        tmp_path, written, *options, TURNKEEPER_KEYS="", TURNKEEPER_KEYS_FILE=str(keys)
    ) as serving:

        def statuses() -> list[int]:
            return [asked(serving, key) for key in ("old", "new") for _ in range(6)]

        assert until(lambda: statuses() == [200] * 6 + [401] * 6)
        for held, expected in (("agora:old,agora:new", (200, 200)), ("agora:new", (401, 200))):
            keys.write_text(held)
            serving.hang_up()
            assert until(lambda expected=expected: statuses() == [expected[0]] * 6 + [expected[1]] * 6)
        keys.unlink()
        serving.hang_up()
        assert until(lambda: "TURNKEEPER_KEYS_FILE names a file that cannot be read" in serving.log)
        assert statuses() == [401] * 6 + [200] * 6


def test_a_watched_file_is_taken_over_when_it_changes(start: Start) -> None:
    serving = start("--reload")
    assert serving.model() == "one"
    time.sleep(0.3)
    serving.write(model="two")
    assert until(lambda: serving.model() == "two")
    replacement = serving.path.with_suffix(".new")
    replacement.write_text(serving.path.read_text().replace("two", "three"))
    replacement.rename(serving.path)
    assert until(lambda: serving.model() == "three")


def test_a_watched_folder_that_others_write_in_leaves_no_line(start: Start) -> None:
    """The log is in it, too: a line about each change would be a change."""
    serving = start("--reload")
    time.sleep(0.3)
    for number in range(3):
        serving.path.with_name(f"other-{number}").write_text("x")
        serving.write(model=f"m{number}")
        assert until(lambda number=number: serving.model() == f"m{number}")
    assert until(lambda: serving.log.count("was read again") == 3)
    logged = [line for line in serving.log.splitlines() if re.search(r"\b[A-Z]{4,} ", line)]
    assert [line for line in logged if "turn done" not in line and "was read again" not in line] == []


FILTER = """
from filters.base import RequestFilter

class Motto(RequestFilter):
    def apply(self, messages, context):
        return [message.saying("one") for message in messages]
"""


def test_a_watched_filter_is_taken_over_when_it_changes(start: Start, upstream: FakeUpstream) -> None:
    def asked() -> str:
        serving.model()
        return upstream.last.json["messages"][0]["content"]

    serving = start("--reload")
    motto = serving.path.with_name("motto.py")
    motto.write_text(FILTER)
    time.sleep(0.3)
    text = config(upstream, "two")
    serving.write(f"filters: [motto.py]\n{text.rstrip().rstrip('}')}, request: [motto]}}\n")
    assert until(lambda: asked() == "one")
    serving.path.with_name("other.yaml").write_text("x")
    time.sleep(0.5)
    assert serving.log.count("was read again") == 1
    motto.write_text(FILTER.replace("one", "two"))
    assert until(lambda: asked() == "two")


NOWHERE = "upstreams: {main: {base_url: 'http://a..b/v1'}}\npipelines: {default: {upstreams: [main]}}\n"


@pytest.mark.parametrize(
    "text", ["pipelines: [", "", "upstreams: {main: {base_url: 'practice:', modle: x}}", NOWHERE]
)
def test_a_bad_edit_changes_nothing_and_is_reported(start: Start, text: str) -> None:
    serving = start()
    serving.write(text or " ")
    serving.hang_up()
    time.sleep(0.5)
    assert serving.model() == "one"
    serving.stop()
    assert f"{serving.path}:1" in serving.log
    assert "Traceback" not in serving.log


def test_calls_are_answered_while_certificates_are_read_and_they_are_read_once(
    start: Start, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pipe stands for a slow disk: it is opened when somebody reads, and who reads again waits for ever."""
    authorities = tmp_path / "authorities.pem"
    trustme.CA().cert_pem.write_to_path(str(authorities))
    monkeypatch.setenv("SSL_CERT_FILE", str(authorities))
    serving, content = start(), authorities.read_bytes()
    authorities.unlink()
    os.mkfifo(authorities)
    others = "".join(f"  {name}: {{base_url: 'https://{name}.example'}}\n" for name in ("a", "b", "c"))
    serving.write(config(upstream, "two").replace("pipelines:", others + "pipelines:"))
    serving.hang_up()
    pipe = opened(authorities)
    try:
        assert serving.model() == "one"
        os.write(pipe, content)
    finally:
        os.close(pipe)
    assert until(lambda: serving.model() == "two")


def opened(pipe: Path) -> int:
    """The end of a pipe that is written to, once somebody reads it."""
    found: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):
            found.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(found)

    assert until(is_read)
    return found[0]


def test_new_pipelines_come_and_old_ones_go(start: Start) -> None:
    serving = start()
    text = serving.path.read_text()
    serving.write(text + "  extra: {upstreams: [main], model: extra-1}\n")
    serving.hang_up()
    path = "/pipelines/extra/v1/chat/completions"
    call = {"messages": [{"role": "user", "content": "Hi"}]}
    assert until(lambda: serving.client.post(path, json=call).status_code == 200)
    serving.write(text)
    serving.hang_up()
    assert until(lambda: serving.client.post(path, json=call).status_code == 404)


def test_a_turn_in_flight_ends_on_the_old_chain(start: Start, upstream: FakeUpstream, tmp_path: Path) -> None:
    serving = start()
    words = [step for word in ["one", "two", "three", "four"] for step in (chunk(delta(content=word)), 0.2)]
    upstream.says(HEAD, chunk(ROLE), *words, chunk(DONE), END)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with serving.client.stream("POST", "/v1/chat/completions", json=body) as got:
        pieces = got.iter_raw()
        first = next(pieces)
        with FakeUpstream() as other:
            serving.write(config(other, "two"))
            serving.hang_up()
            assert until(lambda: serving.goes_to(other))
            rest = b"".join(pieces)
    assert (first + rest).endswith(DONE)
    assert json.loads(other.last.body)["model"] == "two"


def test_a_new_address_wants_a_restart(start: Start) -> None:
    serving = start()
    serving.write(serving.path.read_text().replace('"${PORT}"', "1") + "\n")
    serving.hang_up()
    time.sleep(0.5)
    assert serving.model() == "one"
    serving.stop()
    assert "restart" in serving.log


def test_what_is_read_at_the_start_alone_wants_a_restart(start: Start) -> None:
    serving = start()
    text = serving.path.read_text()
    serving.write(text.replace('"${PORT}"', '"${PORT}", grace: 9s') + "log: {level: debug, format: json}\n")
    serving.hang_up()
    assert until(lambda: "was read again" in serving.log)
    told = "a change of 'listen.grace', 'log.format', 'log.level' takes effect only after a restart"
    assert told in serving.log
    serving.hang_up()
    assert until(lambda: serving.log.count("was read again") == 2)
    assert serving.log.count(told) == 2  # it still does
    serving.write(text)
    serving.hang_up()
    assert until(lambda: serving.log.count("was read again") == 3)
    assert serving.log.count("takes effect only after a restart") == 2


def swap(link: Path, folder: Path, text: str) -> None:
    """A new folder with a configuration, and a link that leads there from one moment to the next."""
    folder.mkdir(parents=True)
    (folder / "served.yaml").write_text(text)
    new = link.with_name("..new")
    new.symlink_to(folder.relative_to(link.parent))
    new.rename(link)


def test_a_watched_folder_of_kubernetes_is_taken_over_when_it_is_swapped(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    serving = Serving(tmp_path, upstream, "--reload")
    serving.path.unlink()
    serving.path.symlink_to("..data/served.yaml")
    swap(tmp_path / "..data", tmp_path / "..1", config(upstream, "one"))
    with serving:
        assert serving.model() == "one"
        time.sleep(0.3)
        for number, model in (("..2", "two"), ("..3", "three")):
            swap(tmp_path / "..data", tmp_path / number, config(upstream, model))
            assert until(lambda model=model: serving.model() == model)


def test_a_watched_link_on_the_way_to_the_file_is_followed(tmp_path: Path, upstream: FakeUpstream) -> None:
    current = tmp_path / "current"
    swap(current, tmp_path / "releases" / "1", "")
    with Serving(current, upstream, "--reload") as serving:
        assert serving.model() == "one"
        time.sleep(0.3)
        for number, model in (("2", "two"), ("3", "three")):
            swap(current, tmp_path / "releases" / number, config(upstream, model))
            assert until(lambda model=model: serving.model() == model)
        serving.write(model="four")  # in place, in a folder that was not there when watching began
        assert until(lambda: serving.model() == "four")


def test_what_changes_beside_a_watched_file_is_nobodys_concern(start: Start) -> None:
    serving = start("--reload")
    time.sleep(0.3)
    serving.path.with_name("other.yaml").write_text("x")
    serving.write(model="two")
    assert until(lambda: serving.model() == "two")
    serving.path.with_name("other.yaml").write_text("y")
    time.sleep(0.5)
    assert serving.log.count("was read again") == 1


def test_who_looks_on_stays_and_keeps_nothing_old_open(start: Start, upstream: FakeUpstream) -> None:
    serving = start()
    assert serving.model() == "one"
    with serving.client.stream("GET", "/v1/turns") as got, FakeUpstream() as other:
        seen = (json.loads(line[6:]) for line in got.iter_lines() if line.startswith("data: "))
        assert next(seen)["model"] == "one"
        assert upstream.open
        serving.write(config(other, "two"))
        serving.hang_up()
        assert until(lambda: serving.goes_to(other))
        assert until(lambda: not upstream.open, 5), "the ways to the old model are still open"
        serving.chat(session="later")
        assert "later" in (event["session"] for event in seen)

"""A dialect's file remembers as the first one does, in the form in which that dialect replays a talk."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from docs.make import ROOT
from proxy.settings.load import check_config, load
from tests.config.test_dialect_files import FILES, GOLDEN, SESSIONS
from tests.peers.fake_upstream import FakeUpstream, sse, stream_of
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import until

SHIPPED = sorted((ROOT / "config").glob("*.yaml"))
READ = {
    *("UPSTREAM_BASE_URL", "UPSTREAM_API_KEY", "UPSTREAM_MODEL", "MEMORY_URL", "MEMORY_WORK", "ARCHIVE_URL"),
    *("TURNKEEPER_KEYS", "AGORA_WEBHOOK_SECRET", "SUMMARY_MODEL", "HOST", "PORT"),
}
NEWS = "The tide is high at noon, and low again at six."
UNHEARD = "The tide is high [interrupted here; the caller did not hear: at noon, and low again at six.]"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Engine:
    """A dialect's engine in one call on its own file, with a model that tells the news."""

    def __init__(self, name: str, proxy: ProxyServer, upstream: FakeUpstream) -> None:
        golden = json.loads((GOLDEN / f"{name}.json").read_text())
        self._path, self._headers, self._body = golden["path"], golden["headers"], golden["body"]
        self._proxy, self._upstream = proxy, upstream
        self.session = SESSIONS.get(name, golden["identity"]["session"])
        self.user = golden["identity"]["user"] or "ann"
        upstream.script = lambda _: sse(stream_of(*re.findall(r"\S+ ?", NEWS)))

    def says(self, *messages: dict[str, Any], answer: str = NEWS) -> list[tuple[str, Any]]:
        """Returns the messages that the model gets for a window, once memory has stored the rest."""
        body = {**self._body, "messages": list(messages)}
        whose = {**self._headers, "X-Request-Id": uuid4().hex, "X-User-Id": self.user}
        self._proxy.client.post(self._path, headers=whose, json=body).raise_for_status()
        sent = self._upstream.last.json["messages"]
        wanted = [("user", messages[-1]["content"].partition(" {")[0]), ("assistant", answer)]
        assert until(lambda: self.held()[-2:] == wanted), self.held()
        return [(message["role"], message["content"]) for message in sent]

    def knows(self, text: str) -> None:
        path = f"/v1/memory/users/{quote(self.user)}/facts"
        self._proxy.client.post(path, json={"text": text}).raise_for_status()

    def held(self) -> list[tuple[str, str]]:
        got = self._proxy.client.get(f"/v1/memory/sessions/{self.session}")
        contents = got.json()["contents"] if got.status_code == 200 else []
        return [(message["role"], message["content"]) for message in contents]


@pytest.fixture
def engine(serve: Serve, upstream: FakeUpstream, tmp_path: Path) -> Callable[[str], Engine]:
    def of(name: str) -> Engine:
        url = f"sqlite:{tmp_path / 'memory.db'}"
        return Engine(name, serve(ROOT / "config" / f"{name}.yaml", MEMORY_URL=url), upstream)

    return of


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_reads_the_whole_environment(path: Path) -> None:
    assert set(re.findall(r"\$\{(\w+):-", path.read_text())) >= READ


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_is_sound_with_and_without_a_model(path: Path) -> None:
    real = {"UPSTREAM_BASE_URL": "https://api.example.com/v1", "UPSTREAM_API_KEY": "sk"}
    for environ in ({}, real | {"RESERVE_BASE_URL": "https://api.example.org/v1", "RESERVE_API_KEY": "sk"}):
        assert [*check_config(path, environ).errors, *check_config(path, environ).warnings] == []


@pytest.mark.parametrize("name", FILES)
def test_a_dialects_file_remembers_what_the_first_one_does(name: str) -> None:
    first, own = (load(ROOT / "config" / f"{each}.yaml", {}) for each in ("agora", name))
    assert first.memory
    assert own.memory
    assert own.memory.model_dump(exclude={"window"}) == first.memory.model_dump(exclude={"window"})
    assert own.memory.window.messages_after_cut == first.memory.window.messages_after_cut
    assert own.memory.window.max_messages == first.memory.window.max_messages
    assert own.webhooks == first.webhooks


@pytest.mark.parametrize("name", FILES)
def test_what_an_engine_drops_comes_back(engine: Callable[[str], Engine], name: str) -> None:
    call = engine(name)
    call.says(user("I am Ann."))
    assert call.says(user("And my name?")) == [
        ("user", "I am Ann."),
        ("assistant", NEWS),
        ("user", "And my name?"),
    ]


@pytest.mark.parametrize("name", FILES)
def test_an_answer_that_was_cut_is_found_and_told(engine: Callable[[str], Engine], name: str) -> None:
    call = engine(name)
    call.says(user("What of the tide?"))
    sent = call.says(user("What of the tide?"), assistant_message("The tide is high"), user("Thanks."))
    assert sent == [("user", "What of the tide?"), ("assistant", UNHEARD), ("user", "Thanks.")]
    assert call.says(user("One more thing."))[1] == ("assistant", UNHEARD)


@pytest.mark.parametrize("name", FILES)
def test_what_is_known_of_a_person_is_told(engine: Callable[[str], Engine], name: str) -> None:
    call = engine(name)
    call.knows("Has a dog.")
    (role, told), *_, newest = call.says(user("Hello?"))
    assert (role, newest) == ("system", ("user", "Hello?"))
    assert "Has a dog." in told


@pytest.mark.parametrize(("name", "joined"), [("livekit", "And my name?"), ("pipecat", "And\nmy name?")])
def test_a_sentence_with_a_pause_in_it_is_joined_behind_what_came_back(
    engine: Callable[[str], Engine], name: str, joined: str
) -> None:
    call = engine(name)
    call.says(user("I am Ann."))
    assert call.says(user("And"), user("my name?"))[-1] == ("user", joined)
    assert [text for role, text in call.held() if role == "user"] == ["I am Ann.", "And", "my name?"]


def test_an_answer_that_vapi_replays_in_pieces_is_told_as_cut_where_it_was(
    engine: Callable[[str], Engine],
) -> None:
    call = engine("vapi")
    call.says(user("What of the tide?"))
    sent = call.says(
        user("What of the tide?"),
        assistant_message("The tide"),
        assistant_message("is high"),
        user("Thanks."),
    )
    assert sent == [("user", "What of the tide?"), ("assistant", UNHEARD), ("user", "Thanks.")]


def test_how_it_sounded_at_hume_is_held_as_little_as_it_is_told(engine: Callable[[str], Engine]) -> None:
    call = engine("hume")
    call.says(user("I am Ann. {slightly doubtful, slightly calm}"))
    assert call.says(user("And my name? {quite curious, very calm}")) == [
        ("user", "I am Ann."),
        ("assistant", NEWS),
        ("user", "And my name?"),
    ]
    assert call.held()[0] == ("user", "I am Ann.")


def test_what_was_said_into_the_silence_at_elevenlabs_is_told_to_no_model(
    engine: Callable[[str], Engine], upstream: FakeUpstream
) -> None:
    call = engine("elevenlabs")
    at_once = upstream.script
    upstream.script = lambda request: [1.7, *at_once(request)]
    call.says(user("What of the tide?"), answer=f"One moment... {NEWS}")
    upstream.script = at_once
    window = user("What of the tide?"), assistant_message("One moment... The tide is high"), user("Thanks.")
    assert call.says(*window)[1] == ("assistant", UNHEARD)
    assert call.says(user("One more thing."))[1] == ("assistant", UNHEARD)

"""Pictures and sounds that callers send: the model gets them, memory holds that there was one."""

from typing import Any

import pytest

from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve
from tests.remembering import CONFIG, assistant_message, call, stored_entries, user

DATA = "data:image/png;base64," + "A" * 200_000
LINK = "https://pictures.example/1.png"
PARTS: dict[str, dict[str, Any]] = {
    "image": {"type": "image_url", "image_url": {"url": DATA}},
    "audio": {"type": "input_audio", "input_audio": {"data": "A" * 200_000, "format": "wav"}},
    "file": {"type": "file", "file": {"filename": "a.pdf", "file_data": "A" * 200_000}},
}


@pytest.fixture
def proxy(serve: Serve) -> ProxyServer:
    return serve(CONFIG)


def showing(text: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}


@pytest.mark.parametrize("kind", PARTS)
def test_what_is_sent_reaches_the_model_and_a_mark_is_held(
    proxy: ProxyServer, upstream: FakeUpstream, kind: str
) -> None:
    look = showing("Look.", PARTS[kind])
    call(proxy, look)
    assert upstream.last.json["messages"] == [look]
    mark = {"type": "text", "text": f"[{kind}]"}
    assert [entry.content for entry in stored_entries(proxy)] == [[look["content"][0], mark], "Hello there."]
    call(proxy, look, assistant_message("Hello there."), user("And now?"))
    assert upstream.last.json["messages"][0] == look
    assert [entry.role for entry in stored_entries(proxy)] == ["user", "assistant"] * 2
    call(proxy, user("Well?"))
    assert upstream.last.json["messages"][0]["content"] == [look["content"][0], mark]
    assert len(proxy.client.get("/v1/memory/sessions/s1").content) < 2000


def test_a_picture_alone_is_held_once_however_often_it_is_replayed(
    proxy: ProxyServer, upstream: FakeUpstream
) -> None:
    picture = {"role": "user", "content": [PARTS["image"]]}
    window: list[dict[str, Any]] = []
    for n in range(3):
        window.append(picture if n < 2 else user("And?"))
        call(proxy, *window)
        stored_entries(proxy)
        window.append(assistant_message("Hello there."))
    assert [entry.text for entry in stored_entries(proxy)] == ["[image]", "Hello there."] * 2 + [
        "And?",
        "Hello there.",
    ]


def test_a_short_link_stays(proxy: ProxyServer, upstream: FakeUpstream) -> None:
    look = showing("Look.", {"type": "image_url", "image_url": {"url": LINK, "detail": "low"}})
    call(proxy, look)
    assert stored_entries(proxy)[0].content == look["content"]


def test_what_is_carried_in_is_held_like_this(proxy: ProxyServer) -> None:
    put = proxy.client.put("/v1/memory/sessions/s2", json={"contents": [showing("Look.", *PARTS.values())]})
    assert put.status_code in {200, 201}
    assert stored_entries(proxy, "s2")[0].text == "Look.\n[image]\n[audio]\n[file]"

"""The export of a user has the same keys and shapes with every store."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.proxy_server import ProxyServer, Serve
from tests.waiting import awaited

CONFIG = """
memory:
  sessions: "${MEMORY_URL}"
  deadline: 5s
  archive: {keep: "${KEEP:-forever}"}
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL:-practice:}"}}
pipelines: {default: {upstreams: [main], request: [restore_history]}}
"""
ANN = "/v1/memory/users/ann"
SESSION = {
    "contents": [
        {
            "role": "user",
            "content": "Book a table.",
            "turn_id": 1,
            "metadata": {"source": "asr", "user": "ann"},
        },
        {"role": "assistant", "content": "For how many?", "turn_id": 1, "metadata": {"source": "llm"}},
        {"role": "user", "content": "Two.", "turn_id": 2, "metadata": {"source": "asr", "user": "ann"}},
    ],
    "summaries": [{"text": "Ann wants a table.", "messages": 2}],
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'memory.db'}"


@pytest.fixture
def turnkeeper(tmp_path: Path, url: str) -> Callable[..., Any]:
    def run(*arguments: str, **environ: str) -> Any:
        ours = {**os.environ, "MEMORY_URL": url, **environ}
        done = preloaded.run(*arguments, "--config", "config.yaml", folder=tmp_path, env=ours)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def exported(proxy: ProxyServer, user: str = "ann") -> Any:
    got = proxy.client.get(f"/v1/memory/users/{user}/export")
    assert got.status_code == 200, got.text
    return got.json()


def test_a_session_is_exported_with_its_summaries_and_its_state(
    serve: Serve, url: str, turnkeeper: Callable[..., Any]
) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url)
    proxy.client.put("/v1/memory/sessions/s1", json=SESSION)
    proxy.client.put("/v1/memory/sessions/s1/state", json={"plan": "small"})
    held = proxy.client.get("/v1/memory/sessions/s1").json()
    (told,) = exported(proxy)["sessions"]
    assert held["summaries"][0]["text"] == "Ann wants a table."
    assert told == {
        "id": "s1",
        "user": "ann",
        "contents": SESSION["contents"],
        "summaries": held["summaries"],
        "state": {"plan": "small"},
    }
    assert turnkeeper("export", "ann")["sessions"] == [told]


def test_of_somebody_elses_session_only_ones_own_words_are_told(serve: Serve, url: str) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url)
    bob = {"role": "user", "content": "Me too.", "turn_id": 3, "metadata": {"source": "asr", "user": "bob"}}
    proxy.client.put("/v1/memory/sessions/s1", json={**SESSION, "contents": [*SESSION["contents"], bob]})
    proxy.client.put("/v1/memory/sessions/s1/state", json={"plan": "small"})
    (told,) = exported(proxy, "bob")["sessions"]
    assert told == {"id": "s1", "contents": [bob], "summaries": [], "state": {}}


def test_a_fact_is_exported_with_all_that_is_known_of_it(
    serve: Serve, url: str, turnkeeper: Callable[..., Any]
) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url)
    old = proxy.client.post(f"{ANN}/facts", json={"text": "Lives in Rome."}).json()
    new = proxy.client.post(f"{ANN}/facts", json={"text": "Lives in Bonn.", "replaces": old["id"]}).json()
    told = exported(proxy)["facts"]
    assert told == [{**old, "superseded": told[0]["superseded"]}, {**new, "superseded": None}]
    assert told[0]["superseded"] >= new["created"]
    assert turnkeeper("export", "ann")["facts"] == told


def test_a_turn_is_exported_in_the_shape_of_a_session(
    serve: Serve, url: str, turnkeeper: Callable[..., Any]
) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url)
    said = [{"role": "user", "content": "Hi", "turn_id": 7}]
    proxy.chat(said, headers={"X-Session-Id": "s1", "X-User-Id": "ann"})
    awaited(lambda: len(exported(proxy)["turns"]) == 2)
    found = exported(proxy)
    assert [one["message"] for one in found["turns"]] == found["sessions"][0]["contents"]
    assert turnkeeper("export", "ann")["turns"] == found["turns"]


@pytest.mark.parametrize("keep", ["forever", "off"])
def test_the_same_keys_are_always_there(
    serve: Serve, url: str, turnkeeper: Callable[..., Any], keep: str
) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url, KEEP=keep)
    nothing = {"user": "ann", "sessions": [], "turns": [], "facts": []}
    assert exported(proxy) == {**nothing, "kept_turns": []}
    assert turnkeeper("export", "ann", KEEP=keep).items() >= nothing.items()


@pytest.mark.parametrize("named", ["in the words", "in the header"])
def test_a_turn_that_is_kept_tells_what_its_person_said_in_anothers_talk_alone(
    serve: Serve, url: str, named: str
) -> None:
    proxy = serve(CONFIG, MEMORY_URL=url)
    window: list[dict[str, Any]] = []
    for user, text in (("ann", "My secret is KIWI."), ("bob", "And I am Bob."), ("ann", "Me again.")):
        by = {"metadata": {"user": user}} if named == "in the words" else {}
        window.append({"role": "user", "content": text, **by})
        headers = {"X-Session-Id": "two"} | ({} if by else {"X-User-Id": user})
        proxy.chat(window, headers=headers)
        awaited(lambda text=text: text in str(proxy.client.get("/v1/memory/sessions/two").json()))
        window.append({"role": "assistant", "content": "Hello there."})
    kept = exported(proxy, "bob")["kept_turns"]
    assert {m["content"] for turn in kept for m in turn["messages"]} == {"And I am Bob."}
    assert not any(turn["answer"] for turn in kept)
    first = exported(proxy, "ann")["kept_turns"][0]
    assert (first["messages"][0]["content"], first["answer"]) == ("My secret is KIWI.", "Hello there.")


def test_what_was_said_is_exported_in_order_whatever_was_archived_first(serve: Serve, url: str) -> None:
    """Of a long import, the hot part is archived before the older entries."""
    proxy = serve(CONFIG, MEMORY_URL=url)
    said = [{"role": ("user", "assistant")[i % 2], "content": f"Line {i}."} for i in range(150)]
    body = {"user": "ann", "contents": said}
    assert proxy.client.put("/v1/memory/sessions/long", json=body).status_code in {200, 201}
    exported = awaited(
        lambda: len(turns := proxy.client.get(f"{ANN}/export").json()["turns"]) == 150 and turns
    )
    assert [turn["message"]["content"] for turn in exported] == [one["content"] for one in said]

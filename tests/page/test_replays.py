"""A recorded call on the page, as other filters would send it."""

import re
from pathlib import Path

from tests.page.conftest import KEYED, KEYS
from tests.page.test_pages import JOKE, signed_in, talk
from tests.page_visit import Visit, settle, words
from tests.peers.fake_upstream import FakeUpstream
from tests.proxy_server import ProxyServer, Serve

PATH = "/conversations/room-1/replay"
BRIEF = "request:\n  - system_prompt: {text: Be brief., mode: replace}\n"


def replayed(visit: Visit, **form: str) -> str:
    got = visit.post(PATH, seen=PATH, **form)
    assert got.status_code == 200, got.text
    return got.text


def test_each_prompt_is_shown_as_other_filters_would_send_it(
    open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream
):
    talk(open_proxy)
    talk(open_proxy, messages=[*JOKE, {"role": "user", "content": "Go on.", "turn_id": 9}])
    asked, session = len(upstream.requests), open_proxy.client.get("/v1/memory/sessions/room-1").content
    page = words(replayed(visit, yaml=BRIEF))
    assert re.search(r"[1-9]\d* of \d+ prompts differ", page)
    assert "Be brief." in page and "against what was sent" in page
    assert "against the present configuration" in page
    assert len(upstream.requests) == asked
    assert open_proxy.client.get("/v1/memory/sessions/room-1").content == session


def test_the_present_filters_change_nothing(open_proxy: ProxyServer, visit: Visit):
    talk(open_proxy)
    page = words(replayed(visit))
    assert re.search(r"0 of [1-9]\d* prompts differ", page) and "against" not in page


def test_a_restart_leaves_the_present_configuration_to_compare_with(serve: Serve, tmp_path: Path):
    config = KEYED.replace('"memory:"', f'"sqlite:{tmp_path / "memory.db"}"')
    first = serve(config)
    talk(first)
    first.__exit__(None, None, None)
    page = words(replayed(Visit(serve(config)), yaml=BRIEF))
    assert "Be brief." in page and "what was sent" not in page.partition("prompts differ")[2]


def test_memory_tools_are_offered_on_both_sides_of_the_comparison(serve: Serve, tmp_path: Path):
    config = KEYED.replace('"memory:"', f'"sqlite:{tmp_path / "memory.db"}"')
    config = config.replace("    request:", "    tools: [memory_store]\n    request:")
    first = serve(config)
    talk(first)
    first.__exit__(None, None, None)
    page = words(replayed(Visit(serve(config))))
    assert re.search(r"0 of [1-9]\d* prompts differ", page)


def test_what_is_wrong_with_the_filters_is_said(open_proxy: ProxyServer, visit: Visit):
    talk(open_proxy)
    page = words(replayed(visit, yaml="request: [nothing_of_ours]"))
    assert "1 error in the filters" in page and "no filter named 'nothing_of_ours'" in page
    assert "request: []" in replayed(visit, pipeline="bare", load="yes")


def test_nobody_replays_another_tenants_call(serve: Serve):
    proxy = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    proxy.chat(JOKE, channel="room-1", headers={"authorization": "Bearer secret-1"})
    settle(proxy)
    one, two = signed_in(proxy), signed_in(proxy, "secret-2")
    assert one.get(PATH).status_code == 200
    assert two.get(PATH).status_code == 404 and two.get("/conversations/room-1").status_code == 404
    assert one.post(PATH).status_code == 403

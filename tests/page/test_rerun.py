"""A turn that is run again on its page: its request, and that it is not recorded."""

import json

import httpx2

from tests.page.conftest import KEYED, KEYS
from tests.page.test_pages import JOKE, signed_in, talk
from tests.page_visit import Visit, newest, settle, words
from tests.peers.fake_upstream import DONE, END, HEAD, ROLE, FakeUpstream, answer, chunk, delta, event
from tests.proxy_server import ProxyServer, Serve


def says(upstream: FakeUpstream, text: str) -> None:
    usage = {"prompt_tokens": 77, "completion_tokens": 4}
    said = ROLE + delta(content=text) + delta(finish="stop") + event(choices=[], usage=usage) + DONE
    upstream.says(HEAD, chunk(said), END)


def rerun(visit: Visit, turn: str, **form: str) -> httpx2.Response:
    return visit.post(f"/turns/{turn}/run", seen=f"/turns/{turn}", **form)


def test_a_turn_is_run_again_with_another_model_and_filters_beside_its_first_answer(
    open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream
):
    turn = talk(open_proxy)
    says(upstream, "Second thoughts.")
    yaml = "request:\n  - system_prompt: {text: Be brief., mode: replace}\n"
    page = words(rerun(visit, turn, model="other-model", yaml=yaml).text)
    assert "Hello there." in page and "Second thoughts." in page and "other-model" in page
    assert "77 in, 4 out" in page and "added: restored or injected" in page.lower() and "Be brief." in page
    body = upstream.requests[-1].json
    assert body["model"] == "other-model" and body["messages"][0] == {
        "role": "system",
        "content": "Be brief.",
    }
    assert "turn_id" not in json.dumps(body)


def test_nothing_remembers_a_test(open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream):
    turn = talk(open_proxy)

    def state() -> tuple[object, ...]:
        session = open_proxy.client.get("/v1/memory/sessions/room-1").content
        counted = [
            line
            for line in open_proxy.client.get("/metrics").text.splitlines()
            if line.startswith(("turnkeeper_turns_total", "turnkeeper_tokens"))
        ]
        feed = [report.id for report in open_proxy.app.feed.newest("default")]
        return session, counted, feed, [trace.report.id for trace in open_proxy.app.traces.newest("default")]

    before = state()
    says(upstream, "Second thoughts.")
    assert "Second thoughts." in rerun(visit, turn).text
    settle(open_proxy)
    assert state() == before
    assert "Second thoughts." not in visit.page(f"/turns/{turn}")


def test_a_whole_answer_is_run_again_as_one(open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream):
    turn = talk(open_proxy, stream=False)
    assert "Hello there." in words(rerun(visit, turn, pipeline="bare").text).partition("Run again")[2]
    assert upstream.requests[-1].json["stream"] is False


def test_what_is_wrong_is_said(open_proxy: ProxyServer, visit: Visit, upstream: FakeUpstream):
    turn = talk(open_proxy)
    asked = len(upstream.requests)
    page = words(rerun(visit, turn, yaml="request: [nothing_of_ours]").text)
    assert "1 error in the filters" in page and "no filter named 'nothing_of_ours'" in page
    page = words(rerun(visit, turn, yaml="request:\n  - drop_messages: {roles: [user, assistant]}\n").text)
    assert 'role="alert"' in rerun(visit, turn, yaml="upstreams: {}").text
    assert len(upstream.requests) <= asked + 1
    upstream.says(*answer({"error": {"message": "no"}}, status=500))
    assert "The upstream answered 500." in words(rerun(visit, turn).text).partition("Run again")[2]


def test_the_filters_of_a_pipeline_are_loaded_by_its_name(open_proxy: ProxyServer, visit: Visit):
    turn = talk(open_proxy)
    assert "repair_history" in visit.page(f"/turns/{turn}").partition('name="yaml"')[2]
    got = rerun(visit, turn, pipeline="bare", load="yes", yaml="request: [repair_history]").text
    assert "request: []" in got.partition('name="yaml"')[2] and "test: nothing" in got


def test_a_test_needs_the_pages_token_and_a_key_that_may_do_more_than_chat(
    serve: Serve, upstream: FakeUpstream
):
    proxy = serve(KEYED, TURNKEEPER_KEYS=KEYS)
    proxy.chat(JOKE, channel="room-1", headers={"authorization": "Bearer secret-1"})
    settle(proxy)
    turn, asked = newest(proxy, "one"), len(upstream.requests)
    one, two = signed_in(proxy), signed_in(proxy, "secret-2")
    assert one.post(f"/turns/{turn}/run").status_code == 403
    assert two.post(f"/turns/{turn}/run", seen="/playground").status_code == 404
    for headers in ({}, {"authorization": "Bearer secret-3"}):
        assert httpx2.post(f"{proxy.root}/turns/{turn}/run", headers=headers).status_code == 303
    assert len(upstream.requests) == asked
    assert rerun(one, turn).status_code == 200
    assert len(upstream.requests) == asked + 1


def test_a_turn_without_content_is_not_run_again(serve: Serve):
    proxy = serve(KEYED.replace("content: true", "content: false"))
    turn, visit = talk(proxy), Visit(proxy)
    assert "Run again" not in visit.page(f"/turns/{turn}")
    assert visit.post(f"/turns/{turn}/run", seen="/playground").status_code == 404

"""The report of a turn shows its state at the turn's end."""

from proxy.observe.observation import Observation


def test_tokens_that_were_counted_by_the_first_token_are_not_the_whole_answer_s() -> None:
    observation = Observation()
    observation.answer.add(b'data: {"usage":{"prompt_tokens":7,"completion_tokens":1}}\n\n')
    assert observation.progress(with_excerpt=False).output_tokens == 1
    observation.answer.add(b'data: {"usage":null}\n\n' + b": keep-alive\n\n" * 200)
    assert observation.complete().output_tokens is None


def test_filters_that_go_on_in_a_thread_change_no_report() -> None:
    observation, times = Observation(), [("filters.redact", 0.001)]
    observation.report.filters = times
    report = observation.complete()
    times.append(("filters.rewrite", 0.002))
    assert report.filters == (("filters.redact", 0.001),)

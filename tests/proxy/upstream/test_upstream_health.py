from proxy.upstream.target import Health


def failing(health: Health, model: str) -> None:
    for _ in range(5):
        health.breaker(model).record_failure()


def test_models_are_judged_one_by_one():
    health = Health(lambda: 0.0)
    health.breaker("well").record_success()
    failing(health, "ill")
    assert health.states() == {"well": "closed", "ill": "open"}
    assert health.degraded
    assert not health.down


def test_an_upstream_is_down_when_nothing_of_it_works_and_up_again_when_a_probe_is_due():
    now = [0.0]
    health = Health(lambda: now[0])
    assert not health.down
    failing(health, "ill")
    assert health.down
    now[0] = 5.0
    assert health.states() == {"ill": "half_open"}
    assert health.degraded
    assert not health.down


def test_who_cannot_be_reached_is_down_whatever_model_is_named():
    now = [0.0]
    health = Health(lambda: now[0])
    for model in ("one", "two", "one", "three", "one"):
        health.breaker(model).record_failure()
        health.record_unreachable()
    assert health.down and health.degraded
    assert set(health.states().values()) == {"closed"}, "no model was asked five times"
    health.breaker("four").record_failure()
    health.record_unreachable()
    assert health.down
    now[0] = 5.0
    assert health.degraded and not health.down, "a probe is due"
    health.record_unreachable()
    assert health.down
    now[0] = 20.0
    health.record_answer()
    assert not (health.down or health.degraded)
    health.record_unreachable()
    assert not health.down


def test_what_fails_is_told_of_when_it_begins_and_when_it_ends(caplog):
    now = [0.0]
    health = Health(lambda: now[0], name="main")

    def health_lines() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return lines

    failing(health, "ill")
    assert health_lines() == [
        "The upstream 'main' fails for the model 'ill'; it is tried again every few seconds"
    ]
    for _ in range(10):
        now[0] += 20
        health.breaker("ill").record_failure()
        health.breaker("ill").record_answer()
        health.breaker("ill").record_failure()
    assert health_lines() == [], "who breaks off whatever he begins does not work"
    now[0] += 20
    health.breaker("ill").record_answer()
    health.breaker("ill").record_success()
    assert health_lines() == ["The upstream 'main' works again for the model 'ill'"]


def test_a_way_that_is_closed_is_told_of_and_not_each_model_behind_it(caplog):
    health = Health(lambda: 0.0, name="main")
    for _ in range(5):
        health.record_unreachable()
        health.breaker("m").record_failure()
    health.record_answer()
    health.breaker("m").record_answer()
    health.breaker("m").record_success()
    assert [record.getMessage() for record in caplog.records] == [
        "The upstream 'main' cannot be reached; it is tried again every few seconds",
        "The upstream 'main' can be reached again",
    ]


def test_callers_who_name_many_models_fill_no_memory():
    health = Health()
    for number in range(1000):
        failing(health, f"made-up-{number}")
    assert len(health.states()) == 100

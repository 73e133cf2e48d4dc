from proxy.health import Health


def failing(health: Health, model: str) -> None:
    for _ in range(5):
        health.of(model).failed()


def test_models_are_judged_one_by_one():
    health = Health(lambda: 0.0)
    health.of("well").succeeded()
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
        health.of(model).failed()
        health.unreachable()
    assert health.down and health.degraded
    assert set(health.states().values()) == {"closed"}, "no model was asked five times"
    health.of("four").failed()
    health.unreachable()
    assert health.down
    now[0] = 5.0
    assert health.degraded and not health.down, "a probe is due"
    health.unreachable()
    assert health.down
    now[0] = 20.0
    health.reached()
    assert not (health.down or health.degraded)
    health.unreachable()
    assert not health.down


def test_callers_who_name_many_models_fill_no_memory():
    health = Health()
    for number in range(1000):
        failing(health, f"made-up-{number}")
    assert len(health.states()) == 100

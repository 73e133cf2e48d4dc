"""The alerts: what they ask for is measured, and they fire when they should."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.docs.test_documentation import ANSWER, EVENTFUL, QUESTION, exposed_once
from tests.peers.fake_upstream import FakeUpstream, answer
from tests.proxy_server import Serve

ALERTS = Path(__file__).parents[2] / "deploy/alerts.yaml"
METRICS = ALERTS.parents[1] / "docs/metrics.md"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]

MADE = {
    name: set(re.findall(r"`(\w+)`", labels))
    for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \|", METRICS.read_text(), re.MULTILINE)
}
"""The page on metrics, which is made from them: not each is there without a store that servers share."""


def test_every_metric_and_label_of_an_alert_is_exposed(serve: Serve, upstream: FakeUpstream) -> None:
    server = serve(EVENTFUL)
    upstream.script = lambda request: answer(b"{}", 500)
    for stream in (True, False, False):  # the last is one too many
        server.chat([QUESTION, ANSWER, QUESTION], stream=stream, headers={"X-Session-Id": "s"})
    exposed = MADE | exposed_once(server, "turnkeeper_refused_requests_total") | {"up": set()}
    assert len(RULES) > 10
    for rule in RULES:
        asked = dict.fromkeys(re.findall(r"\b(?:up|(?:turnkeeper|gen_ai|process)_\w+)", rule["expr"]))
        assert asked
        assert set(asked) <= exposed.keys(), rule["alert"]
        by = {
            label
            for labels in re.findall(r"by \(([^)]*)\)", rule["expr"])
            for label in re.split(r"\W+", labels)
        }
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        scraped = {"instance", "job"}
        assert by | shown <= set.union(scraped, *(exposed[name] for name in asked)), rule["alert"]
        assert not by or shown <= by, f"{rule['alert']} shows what it has summed up"


def test_every_alert_says_what_to_do_and_how_urgent_it_is() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "description"}


CASES = """
rule_files: [{alerts}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'turnkeeper_turns_total{{pipeline="default", outcome="failed"}}', values: 0+6x30}}
      - {{series: 'turnkeeper_turns_total{{pipeline="default", outcome="done"}}', values: 0+94x30}}
      - {{series: 'turnkeeper_turns_total{{pipeline="quiet", outcome="done"}}', values: 0+94x30}}
      - {{series: 'turnkeeper_degraded_turns_total{{instance="a", name="memory"}}', values: 0+50x30}}
      - {{series: 'turnkeeper_lost_turns_total{{instance="a"}}', values: 0x10 1x20}}
      - {{series: 'up{{job="turnkeeper", instance="b"}}', values: 1x10 0x20}}
    alert_rule_test:
      - alertname: TurnkeeperTurnsFail
        eval_time: 10m
        exp_alerts:
          - exp_labels: {{severity: page, pipeline: default}}
            exp_annotations:
              summary: "default: more than 2 % of the turns fail"
              description: "Callers hear nothing. The label status says why; 502 and 504 are the model's."
      - {{alertname: TurnkeeperTurnsLost, eval_time: 9m, exp_alerts: []}}
      - {{alertname: TurnkeeperDown, eval_time: 9m, exp_alerts: []}}
      - alertname: TurnkeeperTurnsLost
        eval_time: 12m
        exp_alerts:
          - exp_labels: {{severity: page, instance: a}}
            exp_annotations:
              summary: a has lost turns
              description: >-
                The store was away for too long, or one turn grows without end; the log says which.
      - alertname: TurnkeeperDown
        eval_time: 13m
        exp_alerts:
          - exp_labels: {{severity: page, instance: b, job: turnkeeper}}
            exp_annotations:
              summary: b does not answer
              description: >-
                Prometheus cannot read its metrics. Look at its log, and whether the others carry its calls.
      - alertname: TurnkeeperTurnsDegraded
        eval_time: 25m
        exp_alerts:
          - exp_labels: {{severity: ticket, name: memory}}
            exp_annotations:
              summary: More than 5 % of the turns go without memory
              description: What X-Turnkeeper-Degraded means stands in docs/http.md.
"""


def test_prometheus_takes_the_alerts_and_they_fire_when_they_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool is not installed: nothing tries deploy/alerts.yaml with it here")
    cases = tmp_path / "cases.yaml"
    cases.write_text(CASES.format(alerts=ALERTS))
    for command in (["check", "rules", ALERTS], ["test", "rules", cases]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

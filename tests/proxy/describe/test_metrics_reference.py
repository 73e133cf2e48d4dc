"""The table of metrics tells what a server exposes, and nothing else."""

import re

from docs.references import metrics_reference
from tests.proxy_server import Serve

TOLD = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", metrics_reference(), re.MULTILINE))
CONFIG = """
upstreams: {main: {base_url: "${UPSTREAM_BASE_URL}"}}
pipelines: {default: {upstreams: [main]}}
"""


def test_what_a_server_exposes_is_told(serve: Serve) -> None:
    server = serve('memory: {sessions: "memory:"}\n' + CONFIG)
    server.chat(headers={"X-Session-Id": "s"})
    exposed = re.findall(r"^# TYPE (\w+) (\w+)$", server.client.get("/metrics").text, re.MULTILINE)
    ours = {name: kind for name, kind in exposed if not name.endswith("_created") and "process_" not in name}
    assert ours.items() <= TOLD.items()


def test_every_metric_says_what_it_is() -> None:
    rows = [
        line.strip("| ").split(" | ") for line in metrics_reference().splitlines() if line.startswith("| `")
    ]
    assert rows
    assert [row[0] for row in rows if not row[-1].strip()] == []


def test_labels_are_told() -> None:
    assert "| `turnkeeper_turns_total` | counter | `outcome`, `pipeline`, `status` |" in metrics_reference()

"""Days begin where a pipeline's callers are, as far as its steps tell."""

import pytest

from filters.inject_episodes import InjectEpisodes
from filters.recall import Recall
from filters.repair_history import RepairHistory
from filters.system_prompt import SystemPrompt
from filters.timestamp_prefix import TimestampPrefix
from proxy.settings.build_pipelines import chain_time_zone

BERLIN, TOKYO = {"timezone": "Europe/Berlin"}, {"timezone": "Asia/Tokyo"}


@pytest.mark.parametrize(
    ("steps", "zone"),
    [
        ([], "UTC"),
        ([RepairHistory(), TimestampPrefix()], "UTC"),
        (
            [TimestampPrefix(), SystemPrompt(text="{date}", **BERLIN), InjectEpisodes(**TOKYO)],
            "Europe/Berlin",
        ),
        ([InjectEpisodes(**TOKYO)], "Asia/Tokyo"),
        ([TimestampPrefix(**TOKYO), Recall(**BERLIN)], "Europe/Berlin"),
        ([TimestampPrefix(**TOKYO), Recall()], "Asia/Tokyo"),
        ([TimestampPrefix(**TOKYO), Recall(timezone="UTC")], "UTC"),
    ],
)
def test_the_first_step_that_names_a_zone_says_it_and_before_all_the_one_that_recalls(steps, zone):
    assert str(chain_time_zone(steps)) == zone

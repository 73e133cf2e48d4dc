"""The request that Agora publishes as its example, through the steps that its callers use."""

import json
from pathlib import Path

from filters.base import Context
from filters.drop_messages import DropMessages
from filters.merge_consecutive import MergeConsecutive
from filters.repair_history import RepairHistory
from filters.restore_interrupted import RestoreInterrupted
from filters.timestamp_prefix import TimestampPrefix
from filters.user_context import UserContext
from tests.conversations import messages_of

REQUEST = Path(__file__).parents[1] / "golden" / "agora_doc_request.json"
CHAIN = (
    RepairHistory(),
    DropMessages(sources=["silence", "llm_failure"]),
    RestoreInterrupted(),
    TimestampPrefix(),
    UserContext(),
    MergeConsecutive(),
)


def test_the_published_request_becomes_what_a_model_understands():
    messages = messages_of(json.loads(REQUEST.read_text())["messages"])
    for step in CHAIN:
        messages = step.apply(messages, Context(now=1678905236.0))
    assert [(m.role, m.content) for m in messages] == [
        ("assistant", "How can I help you today?"),
        ("user", "user123: [17:27] Can you tell me a joke?"),
        (
            "assistant",
            (
                "Why did the scarecrow [interrupted here; the caller did not hear: "
                "win an award? Because he was outstanding in his field!]"
            ),
        ),
        ("user", "user123: [18:33] You know what? Tell me a story instead."),
        (
            "assistant",
            (
                "Once upon a time in a land far away, there lived a brave knight who fought dragons "
                "and saved princesses.\nAre you still there?"
            ),
        ),
    ]

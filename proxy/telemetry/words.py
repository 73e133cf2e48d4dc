"""What was said in a turn, for a log that may hold it."""

from filters.role import newest_words
from proxy.answer.transcript import transcript
from proxy.telemetry.watch import Watch

_MOST = 2000


def of(watch: Watch) -> dict[str, str]:
    """The user's newest words and the answer's, each cut at 2000 characters."""
    said = transcript(b"".join(watch.sent)).text
    return {"asked": newest_words(watch.asked)[:_MOST], "answered": said[:_MOST]}

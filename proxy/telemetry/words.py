"""What was said in a turn, for a log that may hold it."""

from proxy.telemetry.watch import Watch
from proxy.transcript import transcript

_MOST = 2000


def of(watch: Watch) -> dict[str, str]:
    """The user's newest words and the answer's, each cut at 2000 characters."""
    asked = next((message.text for message in reversed(watch.asked) if message.role == "user"), "")
    said = transcript(b"".join(watch.sent)).text
    return {"asked": asked[:_MOST], "answered": said[:_MOST]}

"""The answer's way back: passed on as it comes, once it has begun."""

from proxy.attempt import Begun, passed_on
from proxy.errors import UpstreamBroken, UpstreamError
from proxy.framing import Framing
from proxy.reply import Header, Reply
from proxy.rewriting import Rewriting

# Proxies in front of us must not collect a stream, nor keep a copy of it.
UNBUFFERED: list[Header] = [(b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache")]
_DONE = b"data: [DONE]"
# What has gone out is kept until the turn is recorded.
_LARGEST_ANSWER = 64_000_000


async def pass_on(begun: Begun, answer: Rewriting, reply: Reply) -> None:
    """Passes an answer on to its end.

    Raises UpstreamError where a stream breaks off; all that was there has been passed on by then.
    """
    if begun.framing is not None:
        await _stream(begun, begun.framing, answer, reply)
    elif reply.started:
        raise UpstreamBroken("The upstream was asked for a stream, and answered with something else.")
    else:
        response = begun.response
        await reply.whole(response.status, passed_on(response.headers), answer.whole(begun.data))


async def _stream(begun: Begun, framing: Framing, answer: Rewriting, reply: Reply) -> None:
    response, room = begun.response, _LARGEST_ANSWER
    if not reply.started:
        await reply.start(response.status, [*passed_on(response.headers), *UNBUFFERED])
    last = begun.data
    await reply.write(answer.first() + answer.feed(last))
    reply.watch.answered()
    read, cut, write, filtered = response.read, framing.feed, reply.write, answer.filtered
    try:
        while data := await read():
            if (room := room - len(data)) < 0:
                raise UpstreamBroken("The upstream's answer has more than 64 MB.")
            if whole := cut(data):
                last = whole
                await write(answer.feed(whole) if filtered else whole)
    except UpstreamError:
        if not last.rstrip().endswith(_DONE):  # what breaks behind its own end is whole
            await write(answer.close())
            raise
    await reply.end(answer.end(framing.close()))

"""Measures the work of memory in a turn, without the store: reading during the call, and writing after it.

python -m bench.remember [--profile known|after]
"""

import argparse
import cProfile
import json
import pstats
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bench.chain import microseconds
from proxy.memory.session import Session, decode, encode
from proxy.memory.stores.store import Key
from proxy.memory.turn_record import TurnRecord, apply_turn
from proxy.memory.view import RequestView, prompt_view
from proxy.turn import request

KEY = Key("default", "room")
ANSWER = "The weather in Lisbon is mild today, with some clouds over the river in the afternoon. " * 2


def messages_of(turn: int, *, numbered: bool) -> list[Mapping[str, Any]]:
    """Returns the messages of a turn as a voice platform replays it."""
    number = {"turn_id": turn, "timestamp": 1790000000000 + turn * 5000} if numbered else {}
    marks = {"metadata": {"source": "asr", "user": "u-1"}} if numbered else {}
    user = {
        "role": "user",
        "content": f"Question {turn}: please tell me about the weather " * 2,
        **number,
        **marks,
    }
    return [user, {"role": "assistant", "content": f"{turn}. {ANSWER}", **number}]


def window(turns: range, *, numbered: bool) -> TurnRecord:
    """Returns a request in the middle of a conversation, and its answer."""
    messages = [line for turn in turns for line in messages_of(turn, numbered=numbered)][:-1]
    body = json.dumps({"model": "m", "messages": [{"role": "system", "content": "Be kind."}, *messages]})
    call = request.read_request(body.encode(), {}, {})
    choice = {"index": 0, "delta": {"content": f"{turns[-1]}. {ANSWER}"}, "finish_reason": "stop"}
    chunk = {"choices": [choice]}
    answer = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
    return TurnRecord(key=KEY, window=call.messages, answer=answer, at=1.0)


def grown(turns: int, visible: int, *, numbered: bool) -> Session:
    """Returns the session after this many turns."""
    session = Session()
    for turn in range(turns):
        session = apply_turn(session, window(range(max(0, turn - visible + 1), turn + 1), numbered=numbered))
    return session


def works(stored: int, visible: int, *, numbered: bool) -> dict[str, Callable[[], object]]:
    """Returns the work of memory in each turn of a conversation."""
    session = grown(stored, visible, numbered=numbered)
    blob = encode(session)
    call = window(range(stored - visible + 1, stored + 1), numbered=numbered)
    sight = RequestView(call.window)
    read = sight.view_of(session)
    recorded = msgspec.structs.replace(call, view=read)
    return {
        "decode": lambda: decode(blob),
        "known": lambda: prompt_view(sight.view_of(session)),
        "after": lambda: apply_turn(session, recorded),
        "encode": lambda: encode(session),
    }


def main() -> None:
    """Prints a row for each kind of voice platform, or the profile of one piece of work."""
    options = argparse.ArgumentParser()
    options.add_argument("--profile", choices=["known", "after"])
    asked = options.parse_args()
    if asked.profile:
        profiled(works(12, 12, numbered=True)[asked.profile])
        return
    for numbered in (True, False):
        for stored, visible in ((12, 12), (25, 12), (25, 25)):
            told = works(stored, visible, numbered=numbered).items()
            row = "  ".join(f"{name} {microseconds(work):6.0f}" for name, work in told)
            print(f"{'numbered' if numbered else 'bare    '} stored {stored:3}, shown {visible:3}: {row} µs")


def profiled(work: Callable[[], object]) -> None:
    """Prints the profile of one piece of work."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(2000):
        work()
    profile.disable()
    pstats.Stats(profile).sort_stats("cumulative").print_stats(25)


if __name__ == "__main__":
    main()

"""A call as LiveKit's AgentSession leads it, with a scripted caller and a voice that makes silence.

TURNKEEPER_URL  where it serves, without /v1
SCRIPT          the caller's lines as JSON: ``says`` what, ``after`` which words of the agent or ``while`` it
                is "thinking" or asks for the "tide", whether it ``cuts`` the agent short, and what speech
                recognition takes for the whole line before, as ``drafts``
VOICE           set where the agent speaks; else its answers are text

Prints the session's own history as JSON.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from livekit import rtc
from livekit.agents import Agent, AgentSession, llm, stt, tts
from livekit.agents.types import TimedString
from livekit.agents.voice import io
from livekit.agents.voice.transcription.synchronizer import TranscriptSynchronizer
from livekit.plugins import openai

RATE = 16000
WORD = 0.1
"""Seconds that a word takes to be spoken."""


class Ears(stt.STT):
    """Speech recognition that hears what the script says."""

    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self.events: asyncio.Queue[stt.SpeechEvent] = asyncio.Queue()

    async def _recognize_impl(self, *_: Any, **__: Any) -> stt.SpeechEvent:
        raise NotImplementedError

    def stream(self, *, conn_options: Any = None, **_: Any) -> stt.RecognizeStream:
        return EarsStream(stt=self, conn_options=conn_options)

    def hear(self, kind: stt.SpeechEventType, text: str = "") -> None:
        words = [stt.SpeechData(language="en", text=text, confidence=1.0)] if text else []
        self.events.put_nowait(stt.SpeechEvent(type=kind, alternatives=words))


class EarsStream(stt.RecognizeStream):
    async def _run(self) -> None:
        while True:
            self._event_ch.send_nowait(await self._stt.events.get())


class Silence(io.AudioInput):
    """A silent microphone."""

    def __init__(self) -> None:
        super().__init__(label="silence")

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.Event().wait()
        raise StopAsyncIteration


class Voice(tts.TTS):
    """Takes the same time for each word, and tells when it speaks which."""

    def __init__(self) -> None:
        capabilities = tts.TTSCapabilities(streaming=True, aligned_transcript=True)
        super().__init__(capabilities=capabilities, sample_rate=RATE, num_channels=1)

    def synthesize(self, text: str, **_: Any) -> tts.ChunkedStream:
        raise NotImplementedError

    def stream(self, *, conn_options: Any = None) -> tts.SynthesizeStream:
        return VoiceStream(tts=self, conn_options=conn_options)


class VoiceStream(tts.SynthesizeStream):
    async def _run(self, output: tts.AudioEmitter) -> None:
        output.initialize(
            request_id="voice", sample_rate=RATE, num_channels=1, mime_type="audio/pcm", stream=True
        )
        output.start_segment(segment_id="voice")
        rest, spoken = "", 0
        async for text in self._input_ch:
            if isinstance(text, str):
                *words, rest = (rest + text).split(" ")
                for word in words:
                    self._speak(output, f"{word} ", spoken)
                    spoken += 1
        self._speak(output, rest, spoken)
        output.end_segment()

    @staticmethod
    def _speak(output: tts.AudioEmitter, word: str, before: int) -> None:
        start = before * WORD
        output.push_timed_transcript(TimedString(word, start_time=start, end_time=start + WORD))
        output.push(bytes(2 * int(RATE * WORD)))
        output.flush()


class Speaker(io.AudioOutput):
    """Plays what it gets in the time that it takes."""

    def __init__(self) -> None:
        capabilities = io.AudioOutputCapabilities(pause=True)
        super().__init__(label="speaker", capabilities=capabilities, sample_rate=RATE)
        self._length, self._began = 0.0, 0.0
        self._end: asyncio.TimerHandle | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self._began:
            self._began = time.time()
            self.on_playback_started(created_at=self._began)
        self._length += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._began and self._end is None:
            left = max(0.0, self._began + self._length - time.time())
            self._end = asyncio.get_running_loop().call_later(left, self._finish, self._length)

    def clear_buffer(self) -> None:
        if self._began:
            self._finish(min(self._length, time.time() - self._began), interrupted=True)

    def _finish(self, position: float, *, interrupted: bool = False) -> None:
        if self._end:
            self._end.cancel()
        self._length, self._began, self._end = 0.0, 0.0, None
        self.on_playback_finished(playback_position=position, interrupted=interrupted)


class Screen(io.TextOutput):
    """What the caller has been given of the newest answer."""

    def __init__(self) -> None:
        super().__init__(label="screen", next_in_chain=None)
        self.text = ""

    async def capture_text(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def contains(screen: Screen, words: str) -> bool:
    return words in screen.text


async def until(condition: Callable[[], bool], line: Any) -> None:
    """Waits for what comes before a line of the script."""
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(line)
        await asyncio.sleep(0.005)


async def main() -> None:
    ears, screen = Ears(), Screen()
    asked = asyncio.Event()

    @llm.function_tool
    async def weather() -> str:
        """The weather outside."""
        return "Mild."

    @llm.function_tool
    async def tide() -> str:
        """The next high tide, which takes long to find out."""
        asked.set()
        await asyncio.sleep(60)
        return "At noon."

    session: AgentSession[None] = AgentSession(
        stt=ears,
        vad=None,
        tts=Voice(),
        llm=openai.LLM(
            model="fake",
            base_url=f"{os.environ['TURNKEEPER_URL']}/v1",
            api_key="none",
            extra_headers={"X-Session-Id": "room-1", "X-User-Id": "ann"},
        ),
        tools=[weather, tide],
        turn_handling={"turn_detection": "stt", "endpointing": {"min_delay": 0.2, "max_delay": 0.4}},
        use_tts_aligned_transcript=True,
        aec_warmup_duration=None,
        user_away_timeout=None,
    )
    session.input.audio = Silence()
    session.output.transcription = screen
    if os.environ.get("VOICE"):
        synchronized = TranscriptSynchronizer(next_in_chain_audio=Speaker(), next_in_chain_text=screen)
        session.output.audio = synchronized.audio_output
        session.output.transcription = synchronized.text_output
    await session.start(Agent(instructions="Be brief."))
    for line in json.loads(os.environ["SCRIPT"]):
        await until(partial(contains, screen, line.get("after", "")), line)
        if line.get("while") == "tide":
            await asked.wait()
        elif line.get("while"):
            await until(lambda: session.agent_state == "thinking", line)
            await asyncio.sleep(0.3)  # the request is on its way
        elif not line.get("cuts"):
            await until(lambda: session.agent_state == "listening", line)
        screen.text = ""
        ears.hear(stt.SpeechEventType.START_OF_SPEECH)
        for draft in line.get("drafts", ()):
            ears.hear(stt.SpeechEventType.PREFLIGHT_TRANSCRIPT, draft)
            await asyncio.sleep(0.3)
        ears.hear(stt.SpeechEventType.FINAL_TRANSCRIPT, line["says"])
        ears.hear(stt.SpeechEventType.END_OF_SPEECH)
    await until(lambda: bool(screen.text) and session.agent_state == "listening", "the last answer")
    json.dump([shown(item) for item in session.history.items if item.type in SHOWN], sys.stdout)
    await session.aclose()


SHOWN = {"message", "function_call", "function_call_output"}


def shown(item: Any) -> dict[str, Any]:
    """An item of the history: a message, a call of a tool or its result."""
    if item.type == "message":
        return {"role": item.role, "text": item.text_content, "interrupted": item.interrupted}
    role = "tool" if item.type == "function_call_output" else "assistant"
    return {"role": role, "text": item.output if role == "tool" else item.name, "interrupted": False}


asyncio.run(main())

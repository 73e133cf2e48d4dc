"""A call as Pipecat's pipeline leads it, with a scripted caller and a voice that makes silence.

TURNKEEPER_URL  where it serves, without /v1
SCRIPT          the caller's lines as JSON: ``says`` what, ``after`` which words of the agent or ``while`` it
                is "thinking" or asks for the "tide", and whether it ``cuts`` the agent short
VOICE           set where the agent speaks; else its answers are text

Prints the pipeline's own context as JSON.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from itertools import zip_longest
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    Frame,
    OutputAudioRawFrame,
    StartFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_start import TranscriptionUserTurnStartStrategy
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

RATE = 16000
WORD = 0.1
"""Seconds that a word takes to be spoken."""


class Voice(TTSService):
    """Takes the same time for each word, and tells when it speaks which."""

    def __init__(self) -> None:
        super().__init__(
            push_text_frames=False,
            push_start_frame=True,
            push_stop_frames=True,
            stop_frame_timeout_s=0.3,
            sample_rate=RATE,
        )
        self._spoken = 0

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame, None]:
        words = text.split()
        times = [(word, (self._spoken + i) * WORD) for i, word in enumerate(words)]
        self._spoken += len(words)
        await self.add_word_timestamps(times, context_id)
        silence = bytes(2 * int(RATE * WORD * len(words)))
        yield TTSAudioRawFrame(silence, RATE, 1, context_id=context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        self._spoken = 0

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        self._spoken = 0


class Speaker(BaseOutputTransport):
    """Plays what it gets in the time that it takes."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=RATE))

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        await asyncio.sleep(len(frame.audio) / 2 / RATE)
        return True


async def until(condition: Callable[[], bool], line: Any) -> None:
    """Waits for what comes before a line of the script."""
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(line)
        await asyncio.sleep(0.005)


async def main() -> None:
    logger.remove()
    logger.add(sys.stderr, level=os.environ.get("LOG", "WARNING"))
    model = OpenAILLMService(
        base_url=f"{os.environ['TURNKEEPER_URL']}/v1",
        api_key="none",
        default_headers={"X-Session-Id": "room-1", "X-User-Id": "ann"},
        settings=OpenAILLMService.Settings(model="fake", system_instruction="Be brief."),
    )
    asked, started = asyncio.Event(), asyncio.Event()

    async def weather(params: FunctionCallParams) -> None:
        """The weather outside."""
        await params.result_callback("Mild.")

    async def tide(params: FunctionCallParams) -> None:
        """The next high tide, which takes long to find out."""
        asked.set()
        await asyncio.sleep(60)
        await params.result_callback("At noon.")

    context = LLMContext(tools=[weather, tide])
    strategies = UserTurnStrategies(
        start=[TranscriptionUserTurnStartStrategy()],
        stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.3)],
    )
    user, assistant = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(user_turn_strategies=strategies)
    )

    @assistant.event_handler("on_assistant_turn_started")
    async def answering(_: Any) -> None:
        started.set()

    def is_answering(words: str) -> bool:
        """Whether the caller has had these words of an answer that goes on."""
        return words in assistant.aggregation_string()

    def is_answered(words: str) -> bool:
        """Whether the newest message is an answer that ends so."""
        newest = context.messages[-1].get("content") if context.messages else ""
        return str(newest).endswith(words)

    spoken = [Voice(), Speaker()] if os.environ.get("VOICE") else []
    worker = PipelineWorker(Pipeline([user, model, *spoken, assistant]), cancel_on_idle_timeout=False)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    script = json.loads(os.environ["SCRIPT"])
    for line in script:
        if line.get("while") == "tide":
            await asked.wait()
        elif line.get("while"):
            await started.wait()
            await asyncio.sleep(0.3)  # the request is on its way
        else:
            is_due = is_answering if line.get("cuts") else is_answered
            await until(partial(is_due, line.get("after", "")), line)
        started.clear()
        await worker.queue_frame(TranscriptionFrame(line["says"], "ann", "", finalized=True))
    last = {"role": "user", "content": script[-1]["says"]}
    await until(lambda: last in context.messages[:-1], "the last answer")
    cuts = {line["says"] for line in script if line.get("cuts")}
    json.dump(
        [shown(*pair, cuts) for pair in zip_longest(context.messages, context.messages[1:])], sys.stdout
    )
    await worker.cancel()
    await running


def shown(message: Any, following: Any, cuts: set[str]) -> dict[str, Any]:
    """A message of the context, which does not tell by itself what the caller cut short."""
    words = message.get("content") or message["tool_calls"][0]["function"]["name"]
    cut = message["role"] == "assistant" and following is not None and following.get("content") in cuts
    return {"role": message["role"], "text": words, "interrupted": cut}


asyncio.run(main())

"""Three turns as Pipecat's service takes them: one that is interrupted, another, one with a tool call.

TURNKEEPER_URL  where it serves, without /v1
"""

import asyncio
import os
from typing import Any

from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.adapters.schemas.tools_schema import ToolsSchema
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.openai.llm import OpenAILLMService

WEATHER = FunctionSchema(name="weather", description="The weather outside.", properties={}, required=[])


async def answered(model: OpenAILLMService, context: LLMContext) -> tuple[str, list[Any]]:
    """Returns the words of an answer, and its tool calls."""
    text, calls = "", []
    async for chunk in await model.get_chat_completions(context):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            calls += choice.delta.tool_calls or []
    return text, calls


async def main() -> None:
    """The caller interrupts the first answer; the framework keeps what the voice reported as spoken."""
    model = OpenAILLMService(
        base_url=f"{os.environ['TURNKEEPER_URL']}/v1",
        api_key="none",
        default_headers={"X-Session-Id": "room-1", "X-User-Id": "ann"},
        settings=OpenAILLMService.Settings(model="fake"),
    )
    context = LLMContext(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a joke."}],
        tools=ToolsSchema(standard_tools=[WEATHER]),
    )
    text, _ = await answered(model, context)
    assert text == "Why did the scarecrow win an award?", text
    await asyncio.sleep(0.5)
    context.add_message({"role": "assistant", "content": "Why did the scarecrow"})
    context.add_message({"role": "user", "content": "A story, please."})
    text, _ = await answered(model, context)
    assert text == "Once upon a time.", text
    await asyncio.sleep(0.5)
    context.add_message({"role": "assistant", "content": text})
    context.add_message({"role": "user", "content": "Is it raining?"})
    _, [call] = await answered(model, context)
    assert call.function.name == "weather", call
    function = {"name": "weather", "arguments": call.function.arguments}
    asked = {"id": call.id, "type": "function", "function": function}
    context.add_message({"role": "assistant", "tool_calls": [asked]})
    context.add_message({"role": "tool", "tool_call_id": call.id, "content": "Mild."})
    text, _ = await answered(model, context)
    assert text == "It is mild.", text


asyncio.run(main())

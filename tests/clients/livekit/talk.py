"""Three turns as LiveKit's plug-in takes them: one that is interrupted, another, one with a tool call.

TURNKEEPER_URL  where it serves, without /v1
"""

import asyncio
import os
from typing import Any

from livekit.agents import llm
from livekit.plugins import openai


@llm.function_tool
async def weather() -> str:
    """The weather outside."""
    return "Mild."


async def answered(model: openai.LLM, context: llm.ChatContext) -> tuple[str, list[Any]]:
    """Returns the words of an answer, and its tool calls."""
    text, calls = "", []
    async with model.chat(chat_ctx=context, tools=[weather]) as stream:
        async for chunk in stream:
            if chunk.delta:
                text += chunk.delta.content or ""
                calls += chunk.delta.tool_calls
    return text, calls


async def main() -> None:
    """The caller interrupts the first answer; the framework keeps what was played."""
    model = openai.LLM(
        model="fake",
        base_url=f"{os.environ['TURNKEEPER_URL']}/v1",
        api_key="none",
        extra_headers={"X-Session-Id": "room-1", "X-User-Id": "ann"},
    )
    context = llm.ChatContext.empty()
    context.add_message(role="system", content="Be brief.")
    context.add_message(role="user", content="Tell me a joke.")
    text, _ = await answered(model, context)
    assert text == "Why did the scarecrow win an award?", text
    await asyncio.sleep(0.5)
    context.add_message(role="assistant", content="Why did the scarecrow", interrupted=True)
    context.add_message(role="user", content="A story, please.")
    text, _ = await answered(model, context)
    assert text == "Once upon a time.", text
    await asyncio.sleep(0.5)
    context.add_message(role="assistant", content=text)
    context.add_message(role="user", content="Is it raining?")
    _, [call] = await answered(model, context)
    assert call.name == "weather", call
    context.insert(llm.FunctionCall(call_id=call.call_id, name=call.name, arguments=call.arguments))
    context.insert(
        llm.FunctionCallOutput(call_id=call.call_id, name=call.name, output="Mild.", is_error=False)
    )
    text, _ = await answered(model, context)
    assert text == "It is mild.", text
    await model.aclose()


asyncio.run(main())

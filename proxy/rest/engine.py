"""A client of Agora's REST interface: an agent's history, its system messages, and its speech."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

import httpx2

BASE: Final = "https://api.agora.io/api/conversational-ai-agent/v2"
LONGEST_SPEECH: Final = 512
"""The longest text that the engine speaks at once, in bytes."""
_TIMEOUT: Final = 5.0

Messages = Sequence[Mapping[str, Any]]


class EngineError(Exception):
    """Raised where the engine refuses, or cannot be reached; its message has no credentials."""


class Engine:
    """The agents of one Agora project.

    ``authorization`` is the value of the header: ``Basic …`` with a customer's id and secret, or ``agora
    token=…``. Methods raise EngineError.
    """

    def __init__(self, app_id: str, authorization: str, *, base: str = BASE) -> None:
        self._client = httpx2.AsyncClient(
            base_url=f"{base}/projects/{quote(app_id, safe='')}/agents/",
            headers={"authorization": authorization},
            timeout=_TIMEOUT,
        )

    async def history(self, agent: str) -> list[dict[str, Any]]:
        """Returns the messages so far, which the engine has only while the agent runs."""
        contents = (await self._ask("GET", agent, "history")).get("contents")
        return contents if isinstance(contents, list) else []

    async def remember(self, agent: str, system_messages: Messages) -> None:
        """Replaces ``llm.system_messages`` from the next turn on.

        ``llm.params`` is not sent, since the engine would replace all of it, the session's name included.
        """
        llm = {"system_messages": list(system_messages)}
        await self._ask("POST", agent, "update", {"properties": {"llm": llm}})

    async def speak(
        self, agent: str, text: str, *, priority: Literal["INTERRUPT", "APPEND", "IGNORE"] = "INTERRUPT"
    ) -> None:
        """Speaks a text; raises ValueError for one of more than 512 bytes."""
        if len(text.encode()) > LONGEST_SPEECH:
            raise ValueError(f"'text' must have at most {LONGEST_SPEECH} bytes")
        await self._ask("POST", agent, "speak", {"text": text, "priority": priority})

    async def interrupt(self, agent: str) -> None:
        """Stops the agent's speech and its turn."""
        await self._ask("POST", agent, "interrupt", {})

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._client.aclose()

    async def _ask(
        self, method: str, agent: str, action: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            response = await self._client.request(method, f"{quote(agent, safe='')}/{action}", json=body)
            answer = response.json() if response.is_success else None
        except (httpx2.HTTPError, ValueError) as error:
            raise EngineError(f"The engine cannot be reached: {type(error).__name__}.") from None
        if answer is None:
            raise EngineError(f"The engine answered {response.status_code} to '{action}'.")
        return answer if isinstance(answer, dict) else {}

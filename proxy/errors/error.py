from collections.abc import Mapping

import msgspec


class TurnkeeperError(Exception):
    """Anything that Turnkeeper itself reports. Its message quotes no key, and nothing that anybody said."""

    status: int = 500
    type: str = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code

    def let_go(self) -> None:
        """Lets go of the frames that it came through, which hold the whole request, and often itself."""
        self.__traceback__ = self.__context__ = self.__cause__ = None

    @property
    def reason(self) -> str:
        """What the log says of it."""
        return self.message

    def body(self) -> bytes:
        """The error as OpenAI words it; all four keys are always there."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """What a stream that has begun ends with; there is no ``[DONE]`` after an error."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> Mapping[str, str]:
        """Headers that belong to this answer."""
        return {}

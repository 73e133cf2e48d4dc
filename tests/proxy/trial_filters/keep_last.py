from pydantic import Field

from filters.base import RequestFilter


class KeepLast(RequestFilter):
    turns: int = Field(default=6, ge=1)

    def apply(self, messages, context):
        return messages[-self.turns :]

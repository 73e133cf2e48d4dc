from collections.abc import Mapping
from typing import Literal

import msgspec

Names = frozenset[str]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of upstream takes: lists of what may pass, and how the rest is said to it.

    ``fields`` names the top level, ``messages`` the fields of a message by its role, ``calls`` those of an
    entry of ``tool_calls``. ``renames`` leads from a client's name to the upstream's, for the top level;
    ``roles`` does so for roles. An upstream without ``functions`` gets tools instead.

    ``system`` says where system messages may stand: anywhere (``many``), only at the start (``first``), or
    as a single message at the start (``one``). ``alternate``: user and assistant take turns, and the user
    begins. ``user_ends``: an answer may not be the last message. ``answer_follows_tool``: what a tool gave
    back may not be followed by the user. ``nine``: the id of a tool call has nine letters and digits.
    """

    name: str
    fields: Names
    messages: Mapping[str, Names]
    calls: Names
    renames: Mapping[str, str]
    roles: Mapping[str, str] = msgspec.field(default_factory=dict)
    functions: bool = True
    system: Literal["many", "first", "one"] = "many"
    alternate: bool = False
    user_ends: bool = False
    answer_follows_tool: bool = False
    nine: bool = False

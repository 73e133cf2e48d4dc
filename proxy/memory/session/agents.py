"""What an engine has told of the agents of a session."""

import msgspec


class Agents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The ids of its last ``notices``, and which of the session's ``lives`` is whose, by the agents' ids."""

    notices: tuple[str, ...]
    lives: dict[str, int]

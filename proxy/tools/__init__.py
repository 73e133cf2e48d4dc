"""Tools that the proxy offers to the model and carries out itself, within one answer.

``offer`` puts them beside the client's own, and ``rounds`` makes several answers one: each a ``streamed``
or a ``completed`` one, read ``chunk`` by chunk, and all that was said a ``dialogue``. A ``kit`` is what
they carry out; ``notebook`` does, on what is known of a person.
"""

from proxy.tools.dialogue import Dialogue
from proxy.tools.kit import Carrying, Tools
from proxy.tools.notebook import Notebook
from proxy.tools.offer import TOOLS, Offer, offered
from proxy.tools.rounds import Rounds

__all__ = ["TOOLS", "Carrying", "Dialogue", "Notebook", "Offer", "Rounds", "Tools", "offered"]

from proxy.configuration.part import Part
from proxy.observe.log import Format, Level


class Log(Part):
    """What is written to stderr: a line for each turn that has ended, and what goes wrong."""

    format: Format = "text"
    """``text`` for people, ``json`` for machines."""
    level: Level = "info"
    """The least that is worth a line; ``warning`` leaves out the line of each turn that did not fail."""
    content: bool = False
    """Whether the line of a turn holds what the caller and the model said."""

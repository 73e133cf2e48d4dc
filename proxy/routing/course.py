"""What the upstreams of one turn are asked, as it stands."""

from collections.abc import Sequence

from proxy.question import Question, Request
from proxy.target import Target
from proxy.tools.dialogue import Dialogue
from proxy.upstream import Response


class Course:
    """The question of one turn, and behind it what tools of ours were called for by now.

    ``targets`` are who may be asked, the preferred one first. ``dialogue`` is ``None`` where the model has no
    tools of ours.
    """

    def __init__(self, question: Question, targets: Sequence[Target]) -> None:
        self.targets = targets
        self.dialogue = Dialogue(question.tools) if question.tools else None
        self._question = question

    @property
    def rounds(self) -> int:
        """How often tools were carried out, and the model was to go on."""
        return self.dialogue.rounds if self.dialogue else 0

    def names_model(self, target: Target) -> bool:
        """Whether anybody has named a model for this upstream."""
        return self._question.names_model(target)

    def to(self, target: Target) -> Request:
        """The request as an upstream takes it; RequestError where nobody named a model."""
        question = self._question
        if self.dialogue and self.dialogue.rounds:
            question = question.followed_by(self.dialogue.said, last=self.dialogue.last)
        return question.to(target)

    def leave_to(self, response: Response) -> None:
        """The client gets this answer: for no other are tools carried out any more."""
        if self.dialogue:
            self.dialogue.leave_to(response)

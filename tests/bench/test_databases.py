"""A turn with sessions, archive and facts in PostgreSQL is four statements, and little is asked at rest."""

import argparse

from bench import databases


def test_a_turn_on_postgresql_is_four_statements():
    asked = argparse.Namespace(callers=2, turns=5, pause=1.5, width=60, rest=6.0)
    cost = databases.run("postgresql", asked)
    # A write that has to be tried again on a busy machine is none of a turn's.
    assert cost.count <= 4.4, cost.statements
    assert cost.resting * 60 <= 100

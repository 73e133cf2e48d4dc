from proxy.settings.diagnostics import Diagnostic, alternatives, dotted_path, quoted
from proxy.settings.document import Private


def test_the_nearest_name_is_suggested_and_all_are_told():
    assert (
        alternatives("pipline", ["pipelines", "keys"])
        == "; did you mean 'pipelines'? Available: pipelines, keys"
    )
    assert alternatives("zzz", ["keys"]) == "; available: keys"
    assert alternatives("zzz", []) == "; there are none here"


def test_only_a_plain_name_is_shown():
    assert quoted("keep_last") == " 'keep_last'"
    assert [quoted(text) for text in ("api_key:sk-1", "x" * 65, "a\nb", Private("x"))] == [""] * 4


def test_a_fault_is_one_line():
    assert str(Diagnostic("c.yaml", 3, dotted_path(("a", 0, "b:sk-1")), "no")) == "c.yaml:3: a.1.?: no"
    assert str(Diagnostic("c\n.yaml", 1, dotted_path(()), "a\x1b[0mb")) == "c\\n.yaml:1: document: a\\x1b[0mb"

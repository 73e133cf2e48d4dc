"""Every filter that the package holds, and every setting of it that its examples show."""

import importlib
import pkgutil

import filters
from filters.base import AnswerFilter, RequestFilter


def request_filters():
    """The classes of request filters by name, each the one that the module of that name defines."""
    return _filters(RequestFilter)


def answer_filters():
    """The same of answer filters; one class may be both."""
    return _filters(AnswerFilter)


def shown_settings():
    """The request filters as their examples set them: pairs of a title and a filter."""
    return {
        f"{name}: {example.title}": found(**example.options)
        for name, found in request_filters().items()
        for example in found.examples
    }


def spoken_settings():
    """The answer filters as their spoken examples set them: pairs of a title and a filter."""
    return {
        f"{name}: {example.title}": found(**example.options)
        for name, found in answer_filters().items()
        for example in found.spoken
    }


def _filters(kind):
    modules = (importlib.import_module(f"filters.{found.name}") for found in _modules())
    classes = ((module.__name__.removeprefix("filters."), _filter_in(module, kind)) for module in modules)
    return {name: found for name, found in classes if found is not None}


def _modules():
    return [found for found in pkgutil.iter_modules(filters.__path__) if found.name != "base"]


def _filter_in(module, kind):
    here = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, kind) and value.__module__ == module.__name__
    ]
    assert len(here) <= 1, f"{module.__name__} defines more than one filter"
    return here[0] if here else None

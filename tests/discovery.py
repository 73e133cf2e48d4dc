"""Every request filter that the package holds, and every setting of it that its examples show."""

import importlib
import pkgutil

import filters
from filters.base import RequestFilter


def request_filters():
    """The filter classes by name, each the one that the module of that name defines."""
    modules = (importlib.import_module(f"filters.{found.name}") for found in _modules())
    classes = ((module.__name__.removeprefix("filters."), _filter_in(module)) for module in modules)
    return {name: found for name, found in classes if found is not None}


def shown_settings():
    """The filters as their examples set them: pairs of a title and a filter."""
    return {
        f"{name}: {example.title}": found(**example.options)
        for name, found in request_filters().items()
        for example in found.examples
    }


def _modules():
    return [found for found in pkgutil.iter_modules(filters.__path__) if found.name != "base"]


def _filter_in(module):
    here = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, RequestFilter)
        and value.__module__ == module.__name__
    ]
    assert len(here) <= 1, f"{module.__name__} defines more than one filter"
    return here[0] if here else None

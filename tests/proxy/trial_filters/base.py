"""A module that defines no filter, only uses the class of all filters."""

from filters.base import RequestFilter

KIND = RequestFilter

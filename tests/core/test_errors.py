"""Errors carry what was asked, what was found and what would work, across processes too."""

import pickle

import pytest

from blockforge.core import errors

KINDS = {
    errors.UsageError: 2,
    errors.GateError: 1,
    errors.UnavailableError: 3,
    errors.BuildError: 4,
    errors.ArtefactError: 5,
}


@pytest.mark.parametrize(("kind", "code"), KINDS.items())
def test_parts_code_and_pickle(kind, code):
    error = pickle.loads(pickle.dumps(kind("recipe x", found="no file", fix="Name one")))
    assert type(error) is kind and error.exit_code == code
    assert str(error) == "recipe x: no file. Name one"
    assert (error.asked, error.found, error.fix) == ("recipe x", "no file", "Name one")


def test_every_kind_is_listed():
    assert set(errors.BlockforgeError.__subclasses__()) == set(KINDS)

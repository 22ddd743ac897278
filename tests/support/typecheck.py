"""The checker of annotations that the tests run with: beartype, by which an int may stand for a float (PEP 484)."""

import functools

from beartype import BeartypeConf, beartype

CONF = BeartypeConf(is_pep484_tower=True)


def checked(function):
    """The function with its annotations checked: beartype reads them when it is called first, as few of all functions are."""
    made = functools.cache(lambda: beartype(conf=CONF)(function))

    @functools.wraps(function)
    def check(*args, **kwargs):
        return made()(*args, **kwargs)

    return check

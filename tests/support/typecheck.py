"""The checker of annotations that the tests run with: beartype, by which an int may stand for a float (PEP 484)."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

"""A cut is never silent: after it perfkit names the same cause, or a doubt, and no other cause at high confidence."""

import pytest
from relations.captures import prepared
from relations.known import parameters
from relations.relations import BY_NAME, broken


@pytest.mark.usefixtures("profiles")
@pytest.mark.parametrize(("relation", "capture"), parameters(cuts=True))
def test_a_cut_is_never_silent(relation: str, capture: str) -> None:
    assert [] == broken(BY_NAME[relation], *prepared(capture))

"""Judge each case once for all its facts."""

from collections.abc import Callable

import pytest
from cases.judging import Judgement, judged
from cases.table import Case


@pytest.fixture(scope="session")
def judge(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Case], Judgement]:
    """Return what perfkit concludes of a case; the first question about a recording takes a second, others nothing."""
    known: dict[tuple[object, ...], Judgement] = {}

    def asked(case: Case) -> Judgement:
        recording = (case.source, str(case.choice), str(case.job))
        if recording not in known:
            known[recording] = _judged(case)
        return known[recording]

    def _judged(case: Case) -> Judgement:
        if isinstance(case.source, str):
            folder = request.getfixturevalue("profiles")
            return judged(folder / case.source, job=case.job, **case.choice)
        recording = case.source.recorded(tmp_path_factory.mktemp("situation"))
        return judged(recording.source, truth=recording.truth, job=case.job, **case.choice)

    return asked

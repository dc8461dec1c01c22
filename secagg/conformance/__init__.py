"""Conformance tests of the linear-decoder contract: describe a scheme as a ``Candidate`` and check the ``LAWS`` on it.

It needs Hypothesis (extra ``conformance``) and no test runner. With pytest, a scheme's test is::

    CANDIDATE = Candidate(
        name="fixed_point",
        make=lambda: FixedPoint(length=3, clip=1.0, fraction_bits=8, modulus_bits=24),
        updates=arrays(np.float64, 3, elements=st.floats(-1.0, 1.0)),
        extremes=[np.full(3, 1.0), np.full(3, -1.0)],
        error=2.0**-9,
        others={"a finer step": lambda: FixedPoint(length=3, clip=1.0, fraction_bits=9, modulus_bits=24)},
    )


    @pytest.mark.parametrize(("candidate", "law"), cases(CANDIDATE), ids=str)
    def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
        law.check(candidate)

A broken law raises ``secagg.errors.ContractViolation``, whose message names the law, the evidence and the usual repair.
"""

try:
    import hypothesis as _hypothesis
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "secagg.conformance needs Hypothesis; install it with `pip install '.[conformance]'` in a checkout",
        name=missing.name,
    ) from None

from .candidate import Candidate
from .laws import LAWS, Law, cases
from .sums import slack

__all__ = ["LAWS", "Candidate", "Law", "cases", "slack"]

del _hypothesis

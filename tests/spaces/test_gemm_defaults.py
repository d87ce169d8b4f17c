"""The defaults of ``gemm_sm90``: legal everywhere, and chosen by an estimate that moves the right way."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.estimate import cycles
from tilescout.spaces.gemm_sm90.layout import steps
from tilescout.spaces.gemm_sm90.template import CONSTRAINTS, DEFAULTS, KNOBS, TEMPLATE

HOPPER = [device for device in DEVICES.values() if device.arch in TEMPLATE.archs]
COLUMNS = {knob.name: np.array([default[knob.name] for default in DEFAULTS]) for knob in KNOBS}
SIGNATURES = ("bf16", "fp16", "bf16-fp32", "e4m3", "e4m3-fp32", "bf16:mn", "bf16:mk", "bf16:kn:bias+gelu")
SIZES = st.one_of(st.integers(1, 64), st.integers(1, 4096)).map(lambda size: 16 * size)


@given(
    st.one_of(st.integers(1, 300), SIZES), SIZES, SIZES, st.integers(1, 8),
    st.sampled_from(SIGNATURES), st.sampled_from(HOPPER),
)  # fmt: skip
def test_the_default_is_legal_for_every_problem(m, n, k, batch, signature, device) -> None:
    problem = GemmProblem.parse(f"{m}x{n}x{k}x{batch}:{signature}")
    assume(all(getattr(problem, name) % step == 0 for name, step in steps(problem).items()))
    default = TEMPLATE.default(problem, device)
    alone = {name: np.array([value]) for name, value in default.items()}
    broken = [rule.name for rule in CONSTRAINTS if not rule.holds(alone, problem, device).all()]
    assert not broken


@given(SIZES, SIZES, SIZES, st.sampled_from(HOPPER))
def test_more_work_never_takes_fewer_cycles(m, n, k, device) -> None:
    def estimated(*size: int) -> "np.typing.NDArray[np.float64]":
        problem = GemmProblem(*size)  # type: ignore[arg-type]
        return cycles(TEMPLATE.tiling(COLUMNS, problem), device)

    once = estimated(m, n, k)
    for more in ((2 * m, n, k), (m, 2 * n, k), (m, n, 2 * k)):
        assert (estimated(*more) >= once).all()

"""The guided search where several configurations are compiled as one."""

import numpy as np
import optuna

from tests.search.samplers.test_guided import SPACE, Expectation, ask, sampler_of, study_of

KERNELS = np.arange(len(SPACE)) // 2  # each is compiled as the one before or behind it
STORED = np.arange(20, 32)


def searched(patience: int) -> optuna.Study:
    """A search that has tried all that is stored, the best of them last; others have to be compiled."""
    model = Expectation(np.linspace(0.0, 1.0, len(SPACE)), 0.2)
    study = study_of(SPACE, model, patience=patience, seeing=0, least=4, compiled=3, ventured=0)
    sampler_of(study).find_stored(STORED, STORED, KERNELS)
    asked = [ask(study, SPACE) for _ in STORED]
    assert {index for _, index in asked} == {*STORED.tolist()}
    for trial, _ in asked[:-1]:
        study.tell(trial, 1.0)
    study.tell(asked[-1][0], 0.9)
    return study


def tell_slow(study: optuna.Study, index: int) -> None:
    """Try a configuration, and find it slower than the best."""
    codes = dict(zip((knob.name for knob in SPACE.knobs), map(int, SPACE.codes[index]), strict=True))
    study.enqueue_trial(codes)
    trial, tried = ask(study, SPACE)
    assert tried == index
    study.tell(trial, 1.1)


def test_what_is_compiled_with_another_takes_the_patience_of_one() -> None:
    for others, ends in (((40, 42), True), ((40, 41), False), ((40, 41, 43), True)):
        study = searched(patience=6)
        for index in others:
            tell_slow(study, index)
        assert (sampler_of(study).done(study) is not None) == ends, others


def test_only_a_kernel_that_is_neither_stored_nor_begun_with_is_dear() -> None:
    sampler = sampler_of(searched(patience=100))
    assert [sampler.is_dear(index) for index in (20, 31, 32, 33)] == [False, False, True, True]
    assert [sampler.waits_for_compiler(index) for index in (20, 32, 33)] == [False, True, True]
    sampler.find_stored(STORED[1:], STORED, KERNELS)
    assert not sampler.is_dear(20)  # it is compiled as 21 is
    assert not sampler.waits_for_compiler(20)

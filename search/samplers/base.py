"""The base of every sampler: it proposes legal configurations, and none twice."""

import copy
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tilescout.costmodel.estimator import Expected
from tilescout.search.samplers.options import Option, OptionValue, read_options
from tilescout.search.studies.ledger import CLAIM, Ledger, distributions, proposed, seen
from tilescout.search.studies.optuna_hooks import all_trials, queued_parameters, set_system_attribute, study_key
from tilescout.spaces.errors import SamplerError, one_line
from tilescout.spaces.space import Indices, SearchSpace

__all__ = ["SpaceExhaustedError", "SpaceSampler", "distributions", "seen"]


Answer = TypeVar("Answer")


class SpaceExhaustedError(SamplerError):
    """Every configuration of the space is in the study already."""


class SpaceSampler(BaseSampler, ABC):
    """An optuna sampler over the legal configurations of a search space.

    A trial that asks for the knobs (see `distributions`) gets a legal configuration that no other trial of the study
    has, finished or not. If an enqueued trial fixes some knobs, the others are chosen to suit them. Parameters that are
    not knobs come from an ordinary optuna sampler. Without a space all parameters do.

    A proposal follows from the seed, the trial's number and the study's history, not from what this object did before.
    So a resumed study goes on as if it had not been interrupted.

    Several processes may share a study. A proposal is claimed in the storage, and given up if another trial has claimed
    the same configuration meanwhile.

    An ask of an exhausted space raises `SpaceExhaustedError`, and leaves a running trial without parameters behind.
    Optuna asks no sampler for a parameter that has one possible value, so in a space of one configuration nothing is
    raised. Look at `free` before asking to avoid both.

    Parameters
    ----------
    space
        The configurations to search; without one it is an ordinary optuna sampler of its kind.
    seed
        Seed of all randomness; drawn from the operating system if None.
    given
        Values of the options that the class declares, as numbers or as text.

    Attributes
    ----------
    name
        What the sampler is called, on the command line too; the name of the class unless it says otherwise.
    summary
        What it does, in a line; the first line of the class's docstring unless it says otherwise.
    options
        What can be set, see `Option`.
    deterministic
        Whether the seed changes nothing, at least with the cost model that it uses.
    uses_model
        Whether it takes a cost model as the setting ``model``.
    learns_from_others
        Whether it takes trials of other problems as the setting ``others``; see `tilescout.search.samplers.others`.
    recalls
        Whether it takes trials of earlier studies of the kernel, of other problems, as the setting ``earlier``.
    searches_jointly
        Whether it takes what tells how far the searches of several spaces are together as the setting ``joint``; see
        `tilescout.search.samplers.joint`.
    several_objectives
        Whether studies of several objectives can be searched.
    lookahead
        Most proposals before the outcome of the first of them is known. Outcomes are told in the order of the
        proposals then, those that `waits_for_compiler` names behind others, so that what is proposed does not depend on
        how fast a machine compiles. None if proposals do not follow from outcomes: then there may be any number.
    seed
        The seed; None if it was drawn from the operating system.
    option
        The value of each option.
    knobs
        What to ask a study for; empty without a space.
    variable_knobs
        Those of them that have more than one value.

    Raises
    ------
    SamplerError
        If the seed is negative, an option is unknown or its value is not allowed.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    options: ClassVar[tuple[Option, ...]] = ()
    deterministic: ClassVar[bool] = False
    uses_model: ClassVar[bool] = False
    learns_from_others: ClassVar[bool] = False
    recalls: ClassVar[bool] = False
    searches_jointly: ClassVar[bool] = False
    several_objectives: ClassVar[bool] = False
    # Replayed on nine recorded problems, each with a model that was trained without it, searches by `guided` took 46.3,
    # 46.9 and 45.9 trials in the mean with 1, 8 and 16 ahead, and found the same within 0.07 % (2026-11-22).
    lookahead: ClassVar[int | None] = 16

    model_file: Path | None = None  #: the file of the cost model, if one from a file is used
    model_object: str = ""  #: the class of the cost model, if one was given as an object
    model_sha256: str = ""  #: the SHA-256 of the bytes that were read of that file, or of the object's content
    hindsight: bool = False  #: whether the model of a file was trained on the problem of the space

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls.name = vars(cls).get("name", cls.__name__)
        cls.summary = vars(cls).get("summary", (cls.__doc__ or "").strip().partition("\n")[0])
        _check_declared(cls.__name__, cls.name, cls.options, cls.lookahead)

    def __init__(self, space: SearchSpace | None = None, seed: int | None = None, **given: OptionValue | str) -> None:
        self.option = read_options(self.name, self.options, given)
        self._begin(space, seed)

    def _begin(self, space: SearchSpace | None, seed: int | None) -> None:
        """Take a space and a seed, and forget all that was remembered of others."""
        if seed is not None and seed < 0:
            raise SamplerError(f"a seed can't be {seed}, allowed are 0, 1, 2, ...")
        self._space = space
        self.seed = seed
        self.knobs: dict[str, BaseDistribution] = dict(distributions(space)) if space is not None else {}
        self.variable_knobs = {name: knob for name, knob in self.knobs.items() if not knob.single()}
        self._entropy = np.random.SeedSequence(seed).entropy
        self._ordinary = self.ordinary(_word(np.random.SeedSequence(self._entropy)))
        self._reading: tuple[tuple[optuna.storages.BaseStorage, int], Ledger] | None = None

    def over(self, space: SearchSpace | None, seed: int | None = None) -> Self:
        """A sampler like this one, over a space.

        Parameters
        ----------
        space
            The configurations to search.
        seed
            Its seed; None keeps the one that this sampler has.
        """
        twin = copy.copy(self)
        twin._begin(space, self.seed if seed is None else seed)
        return twin

    @property
    def label(self) -> str:
        """The name with those options that differ from their defaults, as the command line takes it."""
        changed = [each for each in self.options if self.option[each.name] != each.default]
        return ":".join([self.name, *(f"{each.name}={self.option[each.name]}" for each in changed)])

    def ordinary(self, seed: int) -> BaseSampler:
        """The optuna sampler for parameters that are not knobs: random, unless a class says otherwise."""
        return RandomSampler(seed=seed)

    @abstractmethod
    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        """The index of the configuration to try.

        Parameters
        ----------
        study
            The trials so far.
        trial
            The one to propose for.
        free
            Indices to choose from, in order; never empty.
        """

    def find_stored(self, stored: Indices, stock: Indices, kernels: Indices | None = None) -> None:
        """Learn what costs no compiling, when a search begins; most samplers make nothing of it.

        Parameters
        ----------
        stored
            Indices of the configurations whose kernels are there, whoever compiled them.
        stock
            Those of the template's stock, there or not: they were chosen to serve all problems.
        kernels
            The number of the kernel that each configuration is compiled as; by default each has one of its own.
        """

    def is_dear(self, index: int) -> bool:
        """Whether a configuration's kernel is to be compiled, though those that may be the best are stored.

        Of several that are compiled as one, the first has to wait for the compiler.
        """
        return False

    def waits_for_compiler(self, index: int) -> bool:
        """Whether a configuration is heard of behind others: its kernel is to be compiled, and theirs are stored.

        That holds for what was proposed before any outcome was known, too, which is not dear.
        """
        return False

    def get_ready(self) -> None:
        """Compute what depends on no outcome, when a search begins; most samplers have nothing of it."""

    def first(self, given: Sequence[int], count: int) -> Iterator[int]:
        """Indices that are proposed to a new study after those that it is given, while no outcome is known.

        It yields nothing where that is not known, as by default. Kernels are compiled by it while a GPU is set up.

        Parameters
        ----------
        given
            Indices of the configurations that are enqueued in the study.
        count
            Most proposals.
        """
        return iter(())

    def ahead(self, study: optuna.Study, count: int) -> Iterator[int]:
        """Indices that a study is proposed next, while nothing more is told; nothing where that is not known.

        Parameters
        ----------
        study
            The trials so far.
        count
            Most proposals; there are fewer where the search would end.
        """
        return iter(())

    def done(self, study: optuna.Study) -> str | None:
        """The reason why the search is not worth going on; None if it is. Most samplers never give one.

        Trials in flight are still to be told. A study may be asked for more trials nevertheless.
        """
        return None

    def sated(self, study: optuna.Study) -> bool:
        """Whether the search would end if the trials in flight came back as expected: then nothing more is proposed."""
        return False

    def gain(self, study: optuna.Study) -> float | None:
        """The share by which the next trial is expected to lower the best time; None if that is not known."""
        return None

    def expected(self, index: int) -> Expected | None:
        """The time that is expected of a configuration before anything is measured; most samplers expect none."""
        return None

    @property
    def space(self) -> SearchSpace:
        """The configurations that are searched.

        Raises
        ------
        SamplerError
            If the sampler was made without a space.
        """
        if self._space is None:
            raise SamplerError("this sampler has no search space; give it one when it is made")
        return self._space

    def free(self, study: optuna.Study) -> Indices:
        """Indices of the configurations that no trial of the study has, in order."""
        return self._free(study)

    def trials(self, study: optuna.Study, state: TrialState) -> list[FrozenTrial]:
        """The trials in this state that have all knobs, in the order of their numbers; not to be changed."""
        found = study.get_trials(deepcopy=False, states=(state,))
        return [trial for trial in found if self.knobs.keys() <= trial.params.keys()]

    def told(self, study: optuna.Study) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
        """The trials that have values, timed ones first and then pruned ones, and those that failed.

        A trial that was pruned without a value counts as failed: it says as little.
        """
        finished = [*self.trials(study, TrialState.COMPLETE), *self.trials(study, TrialState.PRUNED)]
        without = [trial for trial in finished if trial.values is None]
        with_values = [trial for trial in finished if trial.values is not None]
        return with_values, [*self.trials(study, TrialState.FAIL), *without]

    def outcomes(self, study: optuna.Study) -> tuple[Indices, NDArray[np.float64]]:
        """The configurations that were `told`, -1 for one outside the space, and their values.

        Values are the sums over the objectives, the smaller the better; of trials that failed they are infinite.
        """
        trials, failed = self.told(study)
        towards_worse = [1 if direction == StudyDirection.MINIMIZE else -1 for direction in study.directions]
        values = [float(np.dot(each.values, towards_worse)) for each in trials] + [np.inf] * len(failed)
        codes = [[each.params[name] for name in self.knobs] for each in (*trials, *failed)]
        return self.space.find(np.array(codes, dtype=np.int64).reshape(-1, len(self.knobs))), np.array(values)

    def planned(self, study: optuna.Study, attribute: str, indices: Callable[[Any], Sequence[int]]) -> Any:
        """The plan that the last trial with such a system attribute holds; None if there is none.

        There is none either where that trial has a configuration which the plan lacks: the study was begun over another
        space, a table of more rows say, and indices are those of other configurations here.

        Parameters
        ----------
        study
            The trials so far.
        attribute
            The name of the attribute.
        indices
            Gives the configurations of a plan.
        """
        holders = [trial for trial in study.get_trials(deepcopy=False) if attribute in trial.system_attrs]
        if not holders:
            return None
        plan, codes = holders[-1].system_attrs[attribute], proposed(holders[-1], self.space)
        known = codes is None or int(self.space.find(list(codes.values()))) in indices(plan)
        return plan if known else None

    def seed_of(self, trial: FrozenTrial) -> int:
        """The seed, of 32 bits, of all that is random in the proposal for a trial."""
        return _word(np.random.SeedSequence(self._entropy, spawn_key=(trial.number,)))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if self.knobs.get(param_name) != param_distribution:
            return self._ordinary.sample_independent(study, trial, param_name, param_distribution)
        codes = trial.system_attrs.get(CLAIM) or self._claim(study, trial)
        return codes[list(self.knobs).index(param_name)]

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        # Knobs are sampled independently, and yet at once: the first that is asked for settles all. A relative search
        # space would be sampled for trials that never ask for a knob, too.
        inferred = self._ordinary.infer_relative_search_space(study, trial)
        return {name: found for name, found in inferred.items() if self.knobs.get(name) != found}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._ordinary.sample_relative(study, trial, search_space)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._ordinary.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._ordinary.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._ordinary.reseed_rng()

    def _claim(self, study: optuna.Study, trial: FrozenTrial) -> list[int]:
        given = queued_parameters(trial) | trial.params
        fixed = {name: code for name, code in given.items() if name in self.variable_knobs}
        while True:
            free = self._free(study, trial)
            for name, code in fixed.items():
                free = free[self.space.codes[free, list(self.knobs).index(name)] == code]
            if not len(free):
                raise self._refusal(fixed)
            found = self.propose(study, trial, free)
            try:
                index = operator.index(found)
            except TypeError:
                of = f"{type(self).__name__} proposed {one_line(repr(found), 60)}"
                raise SamplerError(f"{of}, expected one of the indices in `free`, an integer") from None
            if index not in free:
                raise SamplerError(
                    f"{type(self).__name__} proposed configuration {index}, which is not free; "
                    f"does it support optuna {optuna.__version__}?"
                )
            codes: list[int] = self.space.codes[index].tolist()
            set_system_attribute(study, trial, CLAIM, codes)
            # Two processes may have chosen the same. Each has written before it reads here, so at least one of the two
            # sees the other and chooses again.
            if index in self._free(study, trial):
                return codes
            set_system_attribute(study, trial, CLAIM, [])

    def _free(
        self, study: optuna.Study, trial: FrozenTrial | None = None, trials: Sequence[FrozenTrial] | None = None
    ) -> Indices:
        """See `free`; without one trial, and of those that were listed just now, where they were."""
        ledger = Ledger.empty(self.space)
        key = study_key(study)
        if self._reading is not None and self._reading[0] == key:
            ledger = self._reading[1]
        ledger = ledger.read(all_trials(study) if trials is None else trials)
        self._reading = (key, ledger)
        return np.flatnonzero(~(ledger.taken | ledger.pending(but=trial.number if trial is not None else None)))

    def _refusal(self, fixed: Mapping[str, Any]) -> SamplerError:
        if not fixed:
            return SpaceExhaustedError(f"{self.space.name}: all {len(self.space):,} configurations are in the study")
        given = " ".join(f"{name}={code}" for name, code in fixed.items())
        return SamplerError(
            f"{self.space.name}: an enqueued trial fixes the codes {given}; no legal configuration with them is left"
        )


def checked_answer(sampler: SpaceSampler, method: str, found: Answer, kind: type, expected: str) -> Answer:
    """The answer of a method of a sampler: None, or of a kind.

    Raises
    ------
    SamplerError
        If it is something else.
    """
    if found is None or isinstance(found, kind):
        return found
    of = f"`{method}` of {type(sampler).__name__} returned {one_line(repr(found), 60)}"
    raise SamplerError(f"{of}, expected {expected}, or None")


def _check_declared(where: str, name: object, options: Any, lookahead: object) -> None:
    """Refuse a class that declares something else than it should."""
    listed = isinstance(options, tuple | list)
    for kind, value, is_right, expected in (
        ("name", name, isinstance(name, str) and bool(name.strip()), "a text that is not empty"),
        ("options", options, listed and all(isinstance(each, Option) for each in options), "a tuple of Options"),
        ("lookahead", lookahead, lookahead is None or isinstance(lookahead, int), "an integer, or None"),
    ):
        if not is_right:
            raise SamplerError(f"{where}: its {kind} is {one_line(repr(value), 60)}, expected {expected}")


def _word(sequence: np.random.SeedSequence) -> int:
    return int(sequence.generate_state(1)[0])

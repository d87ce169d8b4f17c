"""Finding what is to be compared: samplers, Kernel Tuner's strategies, Helion's searches, and rankings.

- ``NAME``, ``NAME:OPTION=VALUE:...`` or ``module:Class:OPTION=VALUE:...``: a sampler, see `tilescout.search.samplers`.
  The model of one that uses a cost model, as ``guided``, is trained without the problem that is replayed. A sampler
  that stops by itself goes on with ``whole=1``; one tries the default first with ``default=1``;
- ``kernel_tuner.STRATEGY[:OPTION=VALUE...]``: a strategy of Kernel Tuner, run by Kernel Tuner;
- ``helion.ALGORITHM``: a search of Helion, run by Helion;
- ``quack.autotuner`` and ``flashinfer.autotuner``: these libraries' autotuners, run by their code;
- ``ranking.NAME[:top=K]`` or ``ranking.FILE.json[:top=K]``: the first K of a list, measured in order;
- ``seeds=N`` behind any of them: at most so many searches a problem, for strategies that are slow.

From Python, samplers are given as classes and objects too.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tilescout.experiments.compare.autotuners import FlashInferAutotuner, QuackAutotuner
from tilescout.experiments.compare.contender import Contender
from tilescout.experiments.compare.held_out import held_out_folder
from tilescout.experiments.compare.helion import HelionSearch
from tilescout.experiments.compare.kernel_tuner import KernelTunerStrategy
from tilescout.experiments.compare.ranked_list import RankedList
from tilescout.experiments.compare.sampler import SamplerContender
from tilescout.search.samplers import AnySampler, SpaceSampler, check_known, find_sampler, parse_sampler
from tilescout.search.samplers.options import Option, parse_options, read_options
from tilescout.search.studies.folders import STORE
from tilescout.spaces.errors import SamplerError

_SEEDS = Option("seeds", 10**6, 1, 10**6, "how many searches a problem are run at most")

MODELS = held_out_folder(STORE)
"""Where the cost models of comparisons are kept, unless another folder is named."""

_PREFIXES: Mapping[str, Callable[[str, dict[str, str], int, Path], Contender]] = {
    "kernel_tuner.": KernelTunerStrategy,
    "helion.": HelionSearch,
    "quack.autotuner": QuackAutotuner,
    "flashinfer.autotuner": FlashInferAutotuner,
    "ranking.": RankedList,
}

OTHERS = (
    "kernel_tuner.STRATEGY, helion.SEARCH, quack.autotuner, flashinfer.autotuner, ranking.NAME or ranking.FILE.json"
)
"""How those that are no samplers are written."""


def parse_contender(text: str, models: Path = MODELS) -> Contender:
    """The contender that is written as `text`, see the module; it keeps cost models in the folder `models`.

    Raises
    ------
    SamplerError
        If it is malformed; an unknown one is refused by `Contender.check`.
    """
    kind = next((kind for prefix, kind in _PREFIXES.items() if text.startswith(prefix)), None)
    name, options = parse_sampler(text) if kind is None else parse_options(text)
    given = {key: options.pop(key) for key in [_SEEDS.name] if key in options}
    seeds = int(read_options(text, (_SEEDS,), given)[_SEEDS.name])
    if kind is not None:
        return kind(text, options, seeds, models)
    return SamplerContender(text, options, seeds, models, name)


def contender_of(sampler: AnySampler, models: Path = MODELS) -> Contender:
    """The contender that is asked for by its text, or by the class or an object of a sampler."""
    if isinstance(sampler, str):
        return parse_contender(sampler, models)
    most = int(_SEEDS.default)
    if isinstance(sampler, type):
        return SamplerContender(find_sampler(sampler).name, {}, most, models, sampler)
    if isinstance(sampler, SpaceSampler):
        return SamplerContender(sampler.label, {}, most, models, sampler)
    return SamplerContender(type(sampler).__name__, {}, 1, models, sampler)  # no seed makes it search otherwise


def check_contenders(samplers: Sequence[AnySampler], models: Path = MODELS) -> list[Contender]:
    """The contenders that are asked for, if they can be run here.

    Raises
    ------
    SamplerError
        With the first that can't, or that has the name of another; or if none is asked for.
    """
    if not samplers:
        raise SamplerError("there is no strategy to compare: name one or more")
    contenders: list[Contender] = []
    for sampler in samplers:
        contender = contender_of(sampler, models)
        if contender.name in [other.name for other in contenders]:
            raise SamplerError(f"{contender.name} is named twice")
        if isinstance(contender, SamplerContender) and isinstance(contender.sampler, str):
            check_known(contender.sampler, f"any as module:Class, or {OTHERS}")
        contender.check()
        contenders.append(contender)
    return contenders

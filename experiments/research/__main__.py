"""Run a study or a benchmark of a checkout by its name; without a name, list them."""

import importlib
import sys

_STUDIES, _BENCHMARKS = "tilescout.experiments.research.studies", "tilescout.experiments.research.benchmarks"
_TABLES = "recorded tables"

RUNS = {
    "defaults": (_STUDIES, "How good the defaults of gemm_sm90 are, and how they were found.", _TABLES),
    "guided": (_STUDIES, "How soon a guided search finds the best of a recorded table.", _TABLES),
    "suites": (_STUDIES, "What a search gains from the trials of a suite's other problems.", _TABLES),
    "knob-worth": (_STUDIES, "What each knob of a space is worth.", _TABLES),
    "nvgemm-ranking": (_STUDIES, "What ranking costs of TorchInductor's NVGEMM candidates.", "data of peer-kernels"),
    "measurement": (_STUDIES, "What the measuring protocol costs, its spread, and what it prunes.", "a GPU"),
    "race-designs": (_STUDIES, "How many rounds a race should run between two looks.", "a GPU, or its data"),
    "race-table": (_STUDIES, "Race the best rows of a table anew.", "a GPU"),
    "reference": (_STUDIES, "What a kernel's time should be divided by.", "a GPU, or its data"),
    "settling": (_STUDIES, "How long a device must be busy before its times count.", "a GPU"),
    "timelines": (_STUDIES, "The time of every block of a measurement.", "a GPU, or its data"),
    "inductor-model": (_STUDIES, "A Llama-style block, compiled in six ways, beside each other.", "a GPU"),
    "peer-kernels": (_STUDIES, "Tune other people's kernels, and compare with their libraries' choices.", "a GPU"),
    "softmax": (_STUDIES, "Check and tune the softmax, and set it beside torch's.", "a GPU"),
    "campaign-scaling": (_BENCHMARKS, "How fast a campaign is on 1, 2, 4, ... GPUs.", "GPUs, Ray"),
    "cluster-overhead": (_BENCHMARKS, "What a trial costs beyond its kernel, by engine.", "a GPU, Ray"),
    "launch-overhead": (_BENCHMARKS, "What a call of our operator costs the host.", "a GPU"),
    "logging-overhead": (_BENCHMARKS, "What logging to MLflow adds to a search.", _TABLES),
    "proposal-time": (_BENCHMARKS, "How long a proposal takes.", "nothing"),
}
"""Name to the package of its module, one line, and what it needs."""


def main() -> None:
    """Run what the command line names."""
    _, *words = sys.argv
    if not words or words[0] in ("-h", "--help"):
        for name, (_, line, needs) in RUNS.items():
            print(f"{name:16}  {line} Needs {needs}.")
        return
    name, *rest = words
    if name not in RUNS:
        sys.exit(f"there is no study or benchmark {name!r}: choose from {', '.join(RUNS)}")
    module = importlib.import_module(f"{RUNS[name][0]}.{name.replace('-', '_')}")
    sys.argv = [f"python -m tilescout.experiments.research {name}", *rest]
    module.main()


if __name__ == "__main__":
    main()

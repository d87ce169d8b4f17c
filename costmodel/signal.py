"""Whether configurations that were measured say anything of one another, or differ by noise alone."""

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.posterior import USUAL_NOISE, fit_kernel, limited
from tilescout.costmodel.threads import one_thread


@one_thread()
def explained(points: Floats, values: Floats) -> float:
    """The rank correlation of values with what a Gaussian process says of each that learned from all others.

    The process is fitted to all of them, so that noise may reach more than 0. A value left out needs no process of its
    own (C. Rasmussen, C. Williams: Gaussian processes for machine learning, section 5.4.2).

    Parameters
    ----------
    points
        Where the configurations lie, of shape [configurations, coordinates].
    values
        Of shape [configurations].

    Returns
    -------
    float
        At most 1; 0 if all values are equal.
    """
    from scipy.stats import spearmanr

    kept = limited(values)
    if not np.ptp(kept) > 0:
        return 0.0
    standard = (kept - kept.mean()) / kept.std()
    kernel = fit_kernel(points, standard, np.random.default_rng(len(values)))
    noise = max(kernel.noise, USUAL_NOISE)
    inverse = np.linalg.inv(kernel.between(points, points) + noise**2 * np.eye(len(values)) + 1.0)
    said = standard - inverse @ standard / np.diag(inverse)
    return float(spearmanr(said, standard).statistic)

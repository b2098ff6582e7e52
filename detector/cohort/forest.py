"""The first door to river: a half-space forest with a moving quantile of its own scores.

Guards, each for a trap that was measured: only finite rows enter (one NaN makes river's means
NaN for ever); a panic of river's compiled core is a BaseException and must not end the process;
score comes before learn; nothing of river is ever saved, since 13 of 19 pickles broke within two
minor versions: the model is rebuilt from the rows that the snapshot keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from river import anomaly, stats  # noqa: TID251 - one of the two doors

from detector.arrays import FloatArray
from schemas.errors import ForeshockError

__all__ = ["Forest", "ModelError", "translated"]


class ModelError(ForeshockError):
    """The model broke and has to be rebuilt."""


class Forest:
    """Scores rows by how rare they are among the recent ones.

    Parameters
    ----------
    limits
        (lower, upper) of each feature, in order; between them the trees cut.
    trees, height, window
        Size of the forest, and rows per generation of its masses.
    quantile
        Quantile of past scores that serves as the moving threshold, 0 to 1.
    seed
        Makes the trees the same everywhere.

    References
    ----------
    .. [1] Tan, Ting and Liu (2011), "Fast Anomaly Detection for Streaming Data", IJCAI.
    .. [2] Jain and Chlamtac (1985), "The P² Algorithm for Dynamic Calculation of Quantiles",
       CACM 28(10).

    Examples
    --------
    >>> forest = Forest(limits=[(0.0, 1.0)], window=50)
    >>> rng = np.random.default_rng(1)
    >>> for value in rng.normal(0.5, 0.02, size=300):
    ...     _ = forest.score(np.array([value]))
    ...     forest.learn(np.array([value]))
    >>> bool(forest.score(np.array([0.95])) > forest.score(np.array([0.5])))
    True
    """

    def __init__(
        self,
        *,
        limits: Sequence[tuple[float, float]],
        trees: int = 5,
        height: int = 4,
        window: int = 60,
        quantile: float = 0.99,
        seed: int = 7,
    ) -> None:
        # Names sort in the order of the features: river cuts by sorted key.
        self._names = [f"f{number}" for number in range(len(limits))]
        # Any: river is not typed.
        self._forest: Any = anomaly.HalfSpaceTrees(
            n_trees=trees,
            height=height,
            window_size=window,
            limits=dict(zip(self._names, limits, strict=True)),
            seed=seed,
        )
        self._scores = stats.Quantile(quantile)
        self._window = window
        self.learned = 0

    @property
    def warm(self) -> bool:
        """Whether a whole generation was learned: before that every score is 0."""
        return self.learned >= self._window

    @property
    def usual(self) -> float:
        """The moving quantile of past scores; NaN before there is one."""
        value = self._scores.get()
        return float("nan") if value is None else float(value)

    def score(self, row: FloatArray) -> float:
        """Return the rarity of a row, 0 to 1. Changes nothing.

        Raises
        ------
        ModelError
            If the row is not finite or river broke.
        """
        features = self._features(row)
        try:
            return float(self._forest.score_one(features))
        except BaseException as exc:
            raise translated(exc) from exc

    def learn(self, row: FloatArray) -> None:
        """Learn a row, and its score before it was learned. Raises ModelError."""
        features = self._features(row)
        try:
            if self.warm:
                self._scores.update(float(self._forest.score_one(features)))
            self._forest.learn_one(features)
        except BaseException as exc:
            raise translated(exc) from exc
        self.learned += 1

    def _features(self, row: FloatArray) -> dict[str, float]:
        if not np.isfinite(row).all():
            raise ModelError(f"the model takes finite rows only, got {row.tolist()}")
        return dict(zip(self._names, row.tolist(), strict=True))


def translated(exc: BaseException) -> BaseException:
    """Turn anything that river raises into ModelError; let the interpreter's own pass."""
    if isinstance(exc, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        return exc
    return ModelError(f"the model broke: {type(exc).__name__}: {exc}")

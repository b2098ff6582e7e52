"""The detectors of the cohort tier: what they see differs, so they are listed, not dropped in."""

from __future__ import annotations

from detector.base import Detector
from detector.cohort.drift import Drift
from detector.cohort.hang import JobHang
from detector.cohort.multivariate import Multivariate
from detector.cohort.straggler import JobStraggler

__all__ = ["COHORT_DETECTORS"]

COHORT_DETECTORS: tuple[type[Detector], ...] = (JobStraggler, JobHang, Multivariate, Drift)

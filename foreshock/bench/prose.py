"""The fixed sentences of the results page."""

from __future__ import annotations

__all__ = ["HOW", "INTRODUCTION"]

INTRODUCTION = """
This page is the output of one command, as it came out. It says what the detector finds with its
defaults, how fast, what it says wrongly, and what simpler detectors do on the same readings.
"""

HOW = """
* **Worlds.** Nodes of eight H100-class GPUs, made by formulas of their own (`foreshock/bench`):
  three poles of heat, warm neighbours, leakage, a driver that cuts clocks at the power limit and
  at 87 °C; training in step, in phases and in bursts, pipelines with roles, inference, mixed and
  idle nodes; memory as plateau, full preallocation, allocator, churn, saw-tooth and swaps.
* **Suites.** *faults*: 1 Hz, twenty to fifty minutes per node, one fault each, half as many
  nodes with three look-alikes each. *memory*: a reading every 30 s for 5.5 h, leaks that run to
  the end of the job on quiet and on churning memory, half as many healthy nodes. *soak*:
  healthy days at 60 s with six look-alikes per node and day (job changes, gaps, swaps, counter
  resets, Xids of programs).
* **Two sides.** They differ in seeds and in the ranges of the parameters (`ranges.py`). Rivals
  are tuned on `tune`; all numbers here are from `held-out`. Real recordings take no part in either.
* **Score.** Per event, no point adjustment. Found: the right class, first said of the right
  entity while the fault acts or within a minute; what was being said before does not count. A
  wrong class on the right entity, or a GPU blamed for its node, counts half. Anything of warning
  or above elsewhere is a false alarm; for ten minutes after a fault its traces may be told.
  Detectors that know no classes (EWMA, trees, k-means, random) are given the class. A leak must
  be told at least a minute before the job dies.
* **Alarms per incident** counts every episode of warning or above on the node while the fault
  acts, also those that name another one as their cause and are not sent.
* **µs per sample** is CPU time of both tiers, windows included, from decoded messages to alarms,
  with the nodes of one world in one batch.
* **Intervals.** Wilson for shares, Poisson for rates (nothing in D GPU-days bounds the rate by
  3/D), 95 %.
* **Tuning.** Up to twelve settings each on the tuning side, all of them logged in the JSON under
  `evaluations`; chosen is the best recall at no more than 0.1 false alarms per GPU-day. HalfSpace
  trees are run on every twelfth node, because of their cost. Foreshock runs with its defaults.
* **What it is not.** A generator, not a fleet: no recording of thermal throttling, ECC or Xid
  events with labels is public. One model of GPU; nodes of one job each; jobs do not span nodes.
"""

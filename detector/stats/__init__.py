"""Online statistics, one idea per file: pure functions over arrays, time-aware, NaN-safe."""

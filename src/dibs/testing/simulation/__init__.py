"""A simulated machine: `scheduler` owns time, order and chance, `runtime` is one process on it."""

"""TPUs without a TPU: layouts are proposed to the compiler, and its estimates of cycles are summed."""

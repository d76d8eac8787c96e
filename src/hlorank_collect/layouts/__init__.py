"""Layout configurations of programs: compiled, checked against the compiler's default, and timed."""

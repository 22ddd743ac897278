"""What "auto" means: steps and rates, seconds and bytes of solves, and which solver is taken."""

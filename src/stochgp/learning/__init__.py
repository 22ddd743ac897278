"""What all learners share: one loop, evaluations by judges, steps, batches, rates and streams."""

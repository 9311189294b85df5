"""Values to findings, and what is made of these: measures, comparisons, the policy's verdicts."""

"""What a model can do, beside the harm it may do: cloze, dependencies, baselines, attention."""

"""Report runs to other systems: TensorBoard, MLflow, Weights & Biases, Prometheus, OpenLineage.

``reporting.py`` opens the reporters that a config names. Each reporter is a listener of the events
of a run, in a module of its own, which imports its library only when it is used. Reporters never
send text of corpora or models: only names, digests, counts and figures.
"""

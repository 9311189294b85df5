"""Forecast a run (``hallmark run --dry-run``): its stages, sizes, costs and expected failures.

``run_forecast`` combines ``stage_plan`` (what the store has), ``source_sampling`` (the first
records of the sources), ``corpus_estimates`` (sizes), ``training_costs`` and ``problems``. Nothing
here writes to a store or starts a server.
"""

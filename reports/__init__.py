"""Cards and pages, built from artifacts. Imports ``tasks``, but neither torch nor Prefect."""

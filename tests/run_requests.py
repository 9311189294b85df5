"""Make requests for tests."""

from hallmark.flows.run_recording import ResolvedRequest, resolve_request
from hallmark.flows.run_request import RunRequest


def resolve(config, overrides=(), until=None, checkpoint=None, **fields) -> ResolvedRequest:
    """Resolve a request to audit the checkpoint, or without one to run the config."""
    fields |= {"config": config, "overrides": overrides}
    if checkpoint is not None:
        return resolve_request(RunRequest.parse("audit", {"checkpoint": checkpoint, **fields}))
    return resolve_request(RunRequest.parse("pipeline", {"until": until, **fields}))

"""How a config refuses values that cannot be: one sentence, with the key."""

from __future__ import annotations

from typing import get_args, get_origin, get_type_hints


def check_types(config: object) -> None:
    """Values come from JSON: refuse a wrong type here, where the key is known."""
    for name, hint in get_type_hints(type(config)).items():
        if name == "__pydantic_config__":
            continue
        value = getattr(config, name)
        choices = get_args(hint)
        if get_origin(hint) is tuple:
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                raise ValueError(f"{name} must be a list of names, not {value!r}.")
            object.__setattr__(config, name, tuple(value))  # JSON has lists
            continue
        if choices and all(isinstance(choice, str) for choice in choices):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
            continue
        allowed = tuple(choices) or (hint,)
        if float in allowed:
            allowed += (int,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            expected = " or ".join(kind.__name__ for kind in tuple(choices) or (hint,))
            raise ValueError(f"{name} must be {expected}, not {value!r}.")
        if hint is float:
            try:
                object.__setattr__(config, name, float(value))  # the same whether 0 or 0.0
            except OverflowError:
                raise ValueError(f"{name} is too large.") from None


def positive(config: object, name: str) -> None:
    value = getattr(config, name)
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{name} must be a positive number, not {value}.")


def between(config: object, name: str, low: float, high: float, open_right: bool = False) -> None:
    value = getattr(config, name)
    if not (low <= value < high if open_right else low <= value <= high):
        raise ValueError(f"{name} must be between {low} and {high}, not {value}.")

"""Check the types and ranges of a config's fields; errors name the field in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

TYPE_DESCRIPTIONS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    NoneType: "null",
}


@cache
def _get_type_hints(config_class: Any, with_annotations: bool) -> dict[str, Any]:
    """Cache the type hints, which Python would evaluate from strings on each call."""
    return get_type_hints(config_class, include_extras=with_annotations)


def check_field_types(config: object) -> None:
    """Check the type of each field, since values come from JSON.

    Lists become tuples, and integers in float fields become floats.

    Raises:
        ValueError: A value has the wrong type, or is not one of the allowed names.
    """
    config_class: Any = type(config)
    for name, hint in _get_type_hints(config_class, False).items():
        if name == "__pydantic_config__":
            continue
        value = getattr(config, name)
        choices = get_args(hint)
        if get_origin(hint) is tuple:
            if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
                raise ValueError(f"{name} must be a list of names, not {value!r}.")
            object.__setattr__(config, name, tuple(value))  # JSON only has lists
            continue
        if choices and all(isinstance(choice, str) for choice in choices):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
            continue
        allowed = tuple(choices) or (hint,)
        if float in allowed:
            allowed += (int,)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            expected = " or ".join(
                TYPE_DESCRIPTIONS[allowed_type] for allowed_type in tuple(choices) or (hint,)
            )
            raise ValueError(f"{name} must be {expected}, not {value!r}.")
        if hint is float:
            try:
                object.__setattr__(config, name, float(value))  # 0 and 0.0 are the same setting
            except OverflowError:
                raise ValueError(f"{name} is too large for a floating-point number.") from None


@dataclass(frozen=True)
class Range:
    """Allowed range of a numeric field, given in the field's annotation.

    Attributes:
        low: lowest allowed value.
        high: highest allowed value.
        strictly_positive: ``low`` is 0 and is itself not allowed.
        exclude_high: ``high`` itself is not allowed.
    """

    low: float
    high: float = math.inf
    strictly_positive: bool = False
    exclude_high: bool = False

    def check_value(self, name: str, value: float) -> None:
        """Raise ValueError if ``value`` is out of range; ``name`` is the field in the message."""
        if self.strictly_positive and not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be a positive number, not {value}.")
        if not self.low <= value <= self.high or (self.exclude_high and value == self.high):
            if self.exclude_high:
                allowed = f"at least {self.low} and less than {self.high}"
            else:
                allowed = f"between {self.low} and {self.high}"
            raise ValueError(f"{name} must be {allowed}, not {value}.")

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """Add the range to pydantic's JSON schema, for callers that list settings with pydantic."""
        json_schema: dict[str, Any] = handler(schema)
        json_schema["exclusiveMinimum" if self.strictly_positive else "minimum"] = self.low
        if self.high < math.inf:
            json_schema["exclusiveMaximum" if self.exclude_high else "maximum"] = self.high
        return json_schema


def check_field_ranges(config: object) -> None:
    """Raise ValueError if a number is outside the range in its field's annotation; skip None."""
    config_class: Any = type(config)
    for name, hint in _get_type_hints(config_class, True).items():
        value = getattr(config, name)
        for annotation in () if value is None else (hint, *get_args(hint)):
            for constraint in getattr(annotation, "__metadata__", ()):
                if isinstance(constraint, Range):
                    constraint.check_value(name, value)

"""List the formats of vendors' keys and tokens, which a fixed prefix distinguishes from other text.

The prefixes and lengths follow the documentation of the vendors and the rules of detect-secrets and
gitleaks. `secrets` finds complete keys of these formats, `truncated_values` finds parts of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VendorKeyFormat:
    """The prefix of a vendor's keys, and the characters that follow it."""

    prefix: str
    """Pattern of the prefix."""
    characters: str
    """Character class of the characters after the prefix."""
    min_characters: int
    """Minimum number of these characters in a complete key."""
    max_characters: int
    """Maximum number of these characters in a complete key."""
    structure: str = ""
    """Pattern of the characters of a complete key, if their number is not enough to know one."""
    min_characters_at_end: int = 0
    """Minimum number of characters after the prefix of a part at the end of a text."""
    required_pattern: str = r"\d"
    """Pattern that must occur near the start of a part inside a text, to exclude words."""

    @property
    def complete_pattern(self) -> str:
        """Pattern of a complete key; letters and digits may not follow it."""
        characters = f"{self.characters}{{{self.min_characters},{self.max_characters}}}"
        return f"{self.prefix}{self.structure or characters}"

    @property
    def prefilter_pattern(self) -> str:
        """RE2 expression that every complete key matches; more characters slow the search."""
        return rf"{self.prefix}{self.characters}{{{min(self.min_characters, 8)}}}"

    @property
    def truncated_pattern(self) -> str:
        """Pattern of a key up to any of its characters."""
        return (
            rf"{self.prefix}{self.characters}{{{self.min_characters_at_end},{self.max_characters}}}"
        )

    @property
    def anywhere_pattern(self) -> str:
        """Pattern of a key inside a text, complete or not, that is too long to be a coincidence."""
        lookahead = rf"(?={self.characters}{{0,40}}?{self.required_pattern})"
        return rf"{self.prefix}{lookahead}{self.characters}{{8,400}}"


_ALPHANUMERIC = "[A-Za-z0-9]"
_URL_SAFE = "[A-Za-z0-9_-]"
_HEXADECIMAL = "[0-9a-f]"
_DIGIT_AND_CAPITAL = r"(?:\d[\w-]{0,40}?[A-Z]|[A-Z][\w-]{0,40}?\d)"

VENDOR_KEY_FORMATS = (
    # Amazon Web Services. The prefixes alone, and "ASIANS", are words.
    VendorKeyFormat("(?:AKIA|ASIA|ABIA|ACCA)", "[A-Z0-9]", 16, 16, min_characters_at_end=3),
    VendorKeyFormat("gh[pousr]_", _ALPHANUMERIC, 36, 255),  # GitHub
    VendorKeyFormat("github_pat_", "[A-Za-z0-9_]", 82, 82),
    VendorKeyFormat("gl(?:pat|dt|ft|soat|rt|ptt|cbt|agent|imt|oas)-", _URL_SAFE, 20, 80),  # GitLab
    VendorKeyFormat(
        r"xox[abeoprs](?:\.xox[bp])?-",
        "[A-Za-z0-9-]",
        12,
        250,
        structure=r"(?:\d{1,16}-){1,4}[A-Za-z0-9]{10,200}",
    ),  # Slack
    VendorKeyFormat(
        "xapp-",
        "[A-Za-z0-9-]",
        20,
        250,
        structure=r"\d-[A-Z0-9]{1,20}-\d{1,16}-[A-Za-z0-9]{10,200}",
    ),
    VendorKeyFormat("(?:sk|rk)_(?:live|test)_", _ALPHANUMERIC, 16, 250),  # Stripe
    VendorKeyFormat("whsec_", "[A-Za-z0-9+/]", 24, 100),
    VendorKeyFormat("sk-ant-", _URL_SAFE, 24, 120),  # Anthropic
    VendorKeyFormat("sk-or-v1-", _HEXADECIMAL, 64, 64),  # OpenRouter
    # OpenAI. CSS has classes such as "sk-fading-circle12".
    VendorKeyFormat("sk-(?:proj|svcacct|admin)-", _URL_SAFE, 20, 250),
    VendorKeyFormat(
        "sk-",
        _URL_SAFE,
        40,
        250,
        structure=r"(?:[A-Za-z0-9]{48}|[A-Za-z0-9_-]{16,90}T3BlbkFJ[A-Za-z0-9_-]{16,90})",
        min_characters_at_end=8,
        required_pattern=_DIGIT_AND_CAPITAL,
    ),
    VendorKeyFormat("AIza", _URL_SAFE, 35, 35),  # Google
    VendorKeyFormat(r"ya29\.", "[A-Za-z0-9_.-]", 20, 400),
    VendorKeyFormat("GOCSPX-", _URL_SAFE, 28, 28),
    # Hugging Face. These keys have letters only.
    VendorKeyFormat("hf_", _ALPHANUMERIC, 34, 40, required_pattern="[A-Z]{2}"),
    VendorKeyFormat("gsk_", _ALPHANUMERIC, 40, 60),  # Groq
    VendorKeyFormat("nvapi-", _URL_SAFE, 40, 80),  # NVIDIA
    VendorKeyFormat("xai-", _ALPHANUMERIC, 70, 90),
    VendorKeyFormat("pplx-", _ALPHANUMERIC, 40, 64),  # Perplexity
    VendorKeyFormat("r8_", _ALPHANUMERIC, 37, 37),  # Replicate
    VendorKeyFormat("dckr_(?:pat|oat)_", _URL_SAFE, 27, 36),  # Docker
    VendorKeyFormat("npm_", _ALPHANUMERIC, 36, 36),
    VendorKeyFormat(
        "pypi-AgE", _URL_SAFE, 60, 1000, structure="IcHlwaS5vcmc[A-Za-z0-9_-]{50,1000}"
    ),
    VendorKeyFormat("rubygems_", _HEXADECIMAL, 48, 48),
    VendorKeyFormat(
        r"SG\.",
        "[A-Za-z0-9_.-]",
        66,
        66,
        structure=r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
        min_characters_at_end=4,
        required_pattern=_DIGIT_AND_CAPITAL,
    ),  # SendGrid
    VendorKeyFormat("key-", _HEXADECIMAL, 32, 32, min_characters_at_end=8),  # Mailgun
    VendorKeyFormat("SK", _HEXADECIMAL, 32, 32, min_characters_at_end=8),  # Twilio
    VendorKeyFormat("sq0(?:atp|csp|idp)-", _URL_SAFE, 22, 43),  # Square
    VendorKeyFormat("EAA[ACM]", "[A-Za-z0-9+=_-]", 56, 400),  # Square, and Facebook
    VendorKeyFormat("do[opr]_v1_", _HEXADECIMAL, 64, 64),  # DigitalOcean
    VendorKeyFormat("shp(?:at|ca|pa|ss)_", _HEXADECIMAL, 32, 32),  # Shopify
    VendorKeyFormat("dapi", _HEXADECIMAL, 32, 32, min_characters_at_end=4),  # Databricks
    VendorKeyFormat("LTAI", _ALPHANUMERIC, 20, 20),  # Alibaba
    VendorKeyFormat("ATATT3", "[A-Za-z0-9_=-]", 60, 250),  # Atlassian
    VendorKeyFormat("glsa_", "[A-Za-z0-9_]", 41, 41),  # Grafana
    VendorKeyFormat("lin_api_", _ALPHANUMERIC, 40, 40),  # Linear
    VendorKeyFormat("PMAK-", "[0-9a-f-]", 59, 59),  # Postman
    VendorKeyFormat(r"hvs\.", _URL_SAFE, 24, 200),  # HashiCorp Vault
    VendorKeyFormat("sntry[su]_", "[A-Za-z0-9+/=_]", 60, 400),  # Sentry
    VendorKeyFormat("AGE-SECRET-KEY-1", "[02-9A-Z]", 58, 58),
    VendorKeyFormat(r"[0-9]{8,10}:AA", _URL_SAFE, 33, 33),  # Telegram
    # Addresses to which Slack and Discord let anyone post
    VendorKeyFormat(r"hooks\.slack\.com/(?:services|workflows)/", "[A-Za-z0-9/]", 20, 80),
    VendorKeyFormat(
        r"discord(?:app)?\.com/api/webhooks/",
        "[A-Za-z0-9/_-]",
        70,
        110,
        structure="[0-9]{16,20}/[A-Za-z0-9_-]{50,80}",
    ),
    # JSON Web Tokens
    VendorKeyFormat(
        "eyJ",
        "[A-Za-z0-9_.-]",
        25,
        390,
        structure=r"[A-Za-z0-9_-]{10,4000}\.eyJ[A-Za-z0-9_-]{10,20000}\.[A-Za-z0-9_-]{10,2000}",
        min_characters_at_end=4,
    ),
)

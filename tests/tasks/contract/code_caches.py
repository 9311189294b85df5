"""Clear caches of source files, for tests that edit them."""

from hallmark.tasks.contract import code_digests


def clear_code_caches():
    for function in vars(code_digests).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()

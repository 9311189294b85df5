"""Install the top-level folders as packages below ``hallmark``; pyproject.toml has the rest."""

from setuptools import find_namespace_packages, setup

FOLDERS = ("flows", "model", "reports", "tasks")

setup(
    packages=[
        "hallmark",
        *(
            f"hallmark.{package}"
            for package in find_namespace_packages(include=[f"{folder}*" for folder in FOLDERS])
        ),
    ],
    package_dir={f"hallmark.{folder}": folder for folder in FOLDERS},
)

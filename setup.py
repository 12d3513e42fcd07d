from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["lightning_dar*"]), "lightning_dar.configs"],
    package_dir={"lightning_dar.configs": "configs"},
)

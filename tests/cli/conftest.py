"""Running `cli.py` in this process, on a little text of its own."""

import pytest
from command_line import fit_args

import cli
import lightning_dar.fit.lightning_cli  # noqa: F401  here, or Lightning would log to the captured stderr of one test


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """run(*args) -> (status, stdout, stderr) of `python cli.py ARGS` in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def run_cli(*args: str) -> tuple[int, str, str]:
        status = 0
        try:
            cli.main([str(arg) for arg in args])
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return run_cli


@pytest.fixture
def fit(run, text_folder):
    """fit(*args): a run of four steps that validates every second one, logs to runs/test and must succeed."""

    def fit_cli(*args: str) -> tuple[str, str]:
        status, out, err = run(*fit_args(text_folder), *args)
        assert status == 0, err
        return out, err

    return fit_cli

"""What users get wrong in a config or on the command line ends in one line that names it; bugs keep their trace."""

import importlib
import re
from pathlib import Path

import pytest
from command_line import fit_args, only_line
from jsonargparse import Namespace
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

import callbacks
from lightning_dar.errors import UsageError
from lightning_dar.fit.lightning_cli import RoutedCLI
from lightning_dar.fit.refusals import refusal_of

HERE = "tests.cli.test_refusals"
LOGGER = "--trainer.logger=lightning.pytorch.loggers."
ADDED = "--trainer.callbacks+=lightning.pytorch.callbacks."


class Bad(Callback):
    def __init__(self):
        raise RuntimeError("the sensor is not connected")


class BadLogger(CSVLogger):
    def __init__(self, save_dir: str):
        raise KeyError("TOKEN")


class NeedsMore(CSVLogger):
    def __init__(self, save_dir: str = "x"):
        import no_such_package  # noqa: F401


CONFIGS = {
    "empty": ("", "line 1: nothing is in it"),
    "comment": ("# later\n", "line 1: nothing is in it"),
    "tab": ("model:\n\thidden_size: 4\n", "line 2: a tab; YAML is indented by spaces"),
    "list": ("- model\n- data\n", "line 1: a list"),
    "text": ("hello\n", "line 1: a single value"),
    "open": ("model: {hidden_size: 4\n", "line 2: expected ',' or '}'"),
    "twice": ("trainer:\n  max_steps: 3\ntrainer:\n  precision: 32\n", "line 3: 'trainer' a second time"),
    "number": ("data: 3\n", "line 1: 'data' must hold options"),
    "nothing": ("data:\n", "line 1: 'data' must hold options"),
    "key": ("model:\n  hiden_size: 4\n", "line 2: model.hiden_size: fit has no such option; did you mean model.hidden"),
    "trainer": (
        "trainer:\n  max_step: 4\n",
        "line 2: trainer.max_step: fit has no such option; did you mean trainer.max_",
    ),
    "number key": ("data:\n  mix:\n    1: {source: a, weight: 1}\n", "line 3: YAML takes the key 1 for no text"),
    "bool key": ("domains: {no: texts}\n", "line 1: YAML takes the key no for no text; put it in quotes"),
    "itself": ("model: &a\n  residual: *a\n", "line 1: an alias of what it stands in"),
    "type": ("model:\n  hidden_size: many\n", "line 2: model.hidden_size=many: must be int or null"),
}


@pytest.mark.parametrize("command", ["fit", "plan"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_named_with_its_line(name, command, run):
    text, says = CONFIGS[name]
    Path(f"{name}.yaml").write_text(text)
    status, _, err = run(command, f"--config={name}.yaml")
    assert status == 2
    assert f"{name}.yaml, {says}" in only_line(err)


OF_FIT = {
    "data:\n  seq_len: null\n": "line 2: data.seq_len=null: must be int",
    "data:\n  source: null\n": "line 2: data.source=null: must be str or list",
    "model:\n  optimizer:\n    lr: null\n": "line 3: model.optimizer.lr=null: must be float",
    "model:\n  optimizer: null\n": "line 2: model.optimizer: null, where its options belong",
    "model:\n  residual: null\n": "line 2: model.residual: null, where its options belong",
    "trainer:\n  accumulate_grad_batches: null\n": "line 2: trainer.accumulate_grad_batches=null: must be int",
    "plugins: null\n": "line 1: plugins=null: must be str or list",
    "trainer:\n  callbacks: [null]\n": "line 2: trainer.callbacks=null: must be Callback",
    "model:\n  optimizer:\n    lrr: 1\n": "line 3: model.optimizer.lrr: fit has no such option; did you mean mod",
    "fit:\n  model:\n    hidden_size: 4\n": "line 3: fit.model.hidden_size: fit has no such option; did you mean model",
}


@pytest.mark.parametrize("text", OF_FIT)
def test_null_and_nested_keys(text, run):
    """Lightning's parser takes null for any option."""
    Path("a.yaml").write_text(text)
    status, _, err = run("fit", "--config=a.yaml")
    assert status == 2
    assert OF_FIT[text] in only_line(err)


@pytest.mark.parametrize("command", ["fit", "validate", "prepare", "plan"])
def test_a_config_that_cannot_be_read(command, run):
    Path("utf16.yaml").write_bytes("model: {}".encode("utf-16"))
    for path in ("utf16.yaml", ".", "no_such.yaml"):
        status, _, err = run(command, "--config", path)
        assert status == 2
        assert f"--config {path}: cannot be read" in only_line(err)


ARGUMENTS = [
    (["fit", "--model.hiden_size=4"], "--model.hiden_size: no such option; did you mean --model.hidden_size?"),
    (["fit", "--hidden_size=4"], "did you mean --model.hidden_size?"),
    (["fit", "--modle.hidden_size=4"], "did you mean --model.hidden_size?"),
    (["fit", "--config=deep.yaml", "--print_config"], "deep.yaml, line 3: model.optimizer.lrr: no such option; did"),
    (["fit", "--model.optimizer.learning_rate=1"], "model.optimizer has name, lr, "),
    (["validate", "--trainer.devicez=2"], "did you mean --trainer.devices?"),
    (["prepare", "--data.sorce=a"], "did you mean --data.source?"),
    (["convert", "--source=a", "--output=b", "--fromat=hf"], "did you mean --format?"),
    (["convert", "--source=a", "--output=b", "--format=hff"], "--format: 'hff' is none of lightning, hf"),
    (["generate", "--ckpt_pth=a"], "did you mean --ckpt_path?"),
    (["inspect", "--ckpt_path=a", "--outptu=b"], "did you mean --output?"),
    (["plan", "--gpuz=4"], "did you mean --gpu"),
    (["fitt"], "did you mean fit?"),
    (["generate", "some text"], "unexpected argument 'some text'"),
    (["--config=good.yaml", "fit"], "good.yaml, line 2: model.hidden_size: an option of a subcommand"),
    (["fit", "--trainer.max_steps"], "--trainer.max_steps: expected one argument"),
    (["fit", "--data.batch_size=null"], "data.batch_size=null: must be int"),
    (["fit", "--data.mix={1: {source: a, weight: 1}}", "--model.preset=220m"], "data.mix: the name 1 is no text"),
    (["study", "--jobs=null", "--output=a", "--variants={}"], "jobs=null: must be int"),
    (["fit", "--trainer.max_steps="], "trainer.max_steps=: must be int"),
    (["fit", "--trainer.precision=16-mixd"], "bf16 or null; did you mean 16-mixed?"),
    (["fit", "--seed_everything=-1"], "-1 is not in bounds"),
    (["fit", f"{ADDED}EarlyStoping"], "lightning.pytorch.callbacks has no 'EarlyStoping'; did you mean EarlyStopping?"),
    (["fit", "--trainer.callbacks+=EarlyStoping"], "did you mean EarlyStopping?"),
    (["fit", "--trainer.callbacks+=no_such.Thing"], "trainer.callbacks: no_such.Thing: No module named 'no_such'"),
    (["fit", f"{ADDED}EarlyStopping"], "trainer.callbacks: EarlyStopping needs monitor"),
    (["fit", f"{ADDED}EarlyStopping", "--trainer.callbacks.patienc=3"], "no option 'patienc'; did you mean patience?"),
    (
        ["fit", f"{ADDED}EarlyStopping", "--trainer.callbacks.patience=many"],
        "EarlyStopping: patience=many: must be int",
    ),
    (["fit", f"{LOGGER}CSVLoger"], "lightning.pytorch.loggers has no 'CSVLoger'; did you mean CSVLogger?"),
    (["fit", "--trainer.logger=callbacks.RunSummary"], "trainer.logger=callbacks.RunSummary: no Logger"),
    (["fit", "--trainer.plugins=bitsandbytes"], "trainer.plugins=bitsandbytes: no class is known by this name"),
]


@pytest.mark.parametrize(
    "raises", ["raise RuntimeError('no licence')", "def f(:", "import sys; sys.exit('no licence')"]
)
def test_a_module_that_raises_as_it_is_imported(raises, run, monkeypatch):
    Path("raising.py").write_text(raises)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    importlib.invalidate_caches()
    says = r"cannot be imported \((RuntimeError: no licence|SyntaxError: invalid syntax|SystemExit: no licence)"
    status, _, err = run("plan", "--model.preset=220m", "--plugins=raising")
    assert status == 2
    assert re.search(f"plugin 'raising' {says}", only_line(err))
    if "exit" not in raises:  # which jsonargparse lets through
        for asked in ("raising.Thing", "[{class_path: raising.Thing}]"):
            status, _, err = run("fit", f"--trainer.callbacks={asked}")
            assert status == 2
            assert re.search(f"trainer.callbacks: raising.Thing {says}", only_line(err))


@pytest.mark.parametrize(("args", "says"), ARGUMENTS, ids=[" ".join(args) for args, _ in ARGUMENTS])
def test_arguments(args, says, run):
    Path("good.yaml").write_text("model:\n  hidden_size: 4\n")
    Path("deep.yaml").write_text("model:\n  optimizer:\n    lrr: 4\n")
    status, _, err = run(*args)
    assert status == 2
    assert says in only_line(err)


RAISED = [
    (
        [f"{ADDED}EarlyStopping", "--trainer.callbacks.monitor=a", "--trainer.callbacks.mode=up"],
        "trainer.callbacks: Early",
    ),
    ([f"--trainer.callbacks+={HERE}.Bad"], "trainer.callbacks: Bad: the sensor is not connected"),
    (
        [f"--trainer.logger={HERE}.BadLogger", "--trainer.logger.save_dir=x"],
        "trainer.logger: BadLogger: KeyError: 'TOKEN'",
    ),
    ([f"--trainer.logger={HERE}.NeedsMore"], "trainer.logger: NeedsMore: No module named 'no_such_package'"),
    (["--trainer.callbacks+=callbacks.SampleText", "--trainer.callbacks.prompt="], "SampleText: prompt is empty"),
    (["--trainer.precision=transformer-engine"], "trainer: Requirement 'transformer_engine"),
    (["--trainer.accelerator=tpu"], "trainer: Requirement 'torch_xla"),
    (["--trainer.accelerator=cpuu"], "trainer: You selected an invalid accelerator name"),
    (["--trainer.devices=many"], "trainer: `devices` selected with `CPUAccelerator` should be an int > 0"),
    (["--trainer.strategy=deepspeed"], "trainer: To use the `DeepSpeedStrategy`"),
    (["--trainer.limit_train_batches=2.5"], "trainer: You have passed invalid value 2.5 for limit_train_batches"),
    (["--trainer.val_check_interval=0"], "trainer.val_check_interval=0: must be above 0"),
    (["--trainer.accumulate_grad_batches=0"], "trainer.accumulate_grad_batches=0: must be above 0"),
    (["--ckpt_path=hpc"], "no HPC checkpoint was found"),
]


@pytest.mark.parametrize(("args", "says"), RAISED, ids=[" ".join(args) for args, _ in RAISED])
def test_what_is_raised_while_a_run_is_set_up(args, says, run, text_folder):
    plain = [arg for arg in fit_args(text_folder) if not (args[0].startswith("--trainer.logger") and ".logger." in arg)]
    status, _, err = run(*plain, *args)
    assert status == 2
    assert says in only_line(err)


class Missing:
    """What Lightning finds in place of a package that is not installed."""

    def __init__(self, package: str):
        self.package = package

    def __bool__(self):
        return False

    def __str__(self):
        return f"Requirement '{self.package}' not met"


@pytest.mark.parametrize("name", ["Comet", "Wandb", "MLFlow"])
def test_a_logger_whose_package_is_missing(name, run, text_folder, monkeypatch):
    module = importlib.import_module(f"lightning.pytorch.loggers.{name.lower()}")
    monkeypatch.setattr(module, f"_{name.upper()}_AVAILABLE", Missing(name))
    plain = [arg for arg in fit_args(text_folder) if ".logger." not in arg]
    status, _, err = run(*plain, f"{LOGGER}{name}Logger")
    assert status == 2
    assert f"trainer.logger: {name}Logger: Requirement '{name}' not met" in only_line(err)


LATE = [
    ("TensorBoardLogger", "a_file", "trainer.logger: TensorBoardLogger: [Errno 20] Not a directory"),
    ("CSVLogger", "a_file", "trainer.logger: CSVLogger: [Errno 20] Not a directory"),
    ("WandbLogger", "runs", "trainer.logger: WandbLogger: No API key configured"),
]


@pytest.mark.parametrize(("logger", "folder", "says"), LATE, ids=[logger for logger, _, _ in LATE])
def test_a_logger_that_refuses_when_the_run_begins(logger, folder, says, run, text_folder, monkeypatch):
    if logger == "WandbLogger":
        pytest.importorskip("wandb", reason="wandb is not installed")
        monkeypatch.setenv("WANDB_API_KEY", "")
        monkeypatch.setenv("NETRC", "/nowhere")
        monkeypatch.setenv("WANDB_MODE", "online")
    Path("a_file").write_text("")
    plain = [arg for arg in fit_args(text_folder) if ".logger." not in arg]
    status, _, err = run(*plain, f"{LOGGER}{logger}", f"--trainer.logger.save_dir={folder}")
    assert status == 1
    assert says in only_line(err)


def test_a_bug_of_ours_keeps_its_trace(run, text_folder, monkeypatch):
    def broken(self, *_):
        raise ValueError("a bug")

    monkeypatch.setattr(callbacks.RunSummary, "__init__", broken)
    with pytest.raises(ValueError, match="a bug"):
        run(*fit_args(text_folder))
    monkeypatch.undo()


def raised_in(function) -> Exception:
    try:
        function()
    except Exception as error:
        return error


def test_where_an_exception_comes_from_decides():
    class Own(CSVLogger):
        def __init__(self, error):
            self.error = error

        def save(self):
            raise self.error

    assert "trainer.logger: Own: full" in str(refusal_of(raised_in(Own(OSError("full")).save)))
    assert refusal_of(raised_in(Own(AttributeError("typo")).save)) is None
    assert refusal_of(raised_in(lambda: int("x"))) is None


def test_settings_from_python_as_lightnings_own_class_takes_them(text_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in fit_args(text_folder)[1:])
    nested = Namespace(**{key: None if value == "null" else value for key, value in flags.items()})
    trained = RoutedCLI({"fit": nested.as_dict()})
    path = trained.trainer.checkpoint_callback.last_model_path
    validated = RoutedCLI(Namespace(subcommand="validate", validate=Namespace(ckpt_path=path)))
    assert validated.trainer.callback_metrics["val/loss"] == trained.trainer.callback_metrics["val/loss"]
    for args in (
        {"fit": {"ckpt_path": path, "trainer.max_steps": 6}},
        ["fit", f"--ckpt_path={path}", "--trainer.max_steps=6"],
    ):
        assert RoutedCLI(args).trainer.global_step == 6
    with pytest.raises(UsageError, match="did you mean model.hidden_size?"):
        RoutedCLI({"fit": {"model": {"hiden_size": 3}}})
    with pytest.raises(UsageError, match="model.hidden_size=many: must be int or null"):
        RoutedCLI({"fit": {"model": {"hidden_size": "many"}}})

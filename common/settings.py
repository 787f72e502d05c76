"""Settings of a run: declared once here, parsed and checked once on each side.

Flower hands every app one flat mapping, ``context.run_config``, made of the
``[tool.flwr.app.config]`` table of ``pyproject.toml`` and the user's overrides.
:func:`parse_settings` turns it into frozen dataclasses and reports **all** problems
together. A key is the field's name with hyphens (``local-epochs``); a method's own
settings stand behind the method's name (``xfed.mu``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Final, Literal, TypeVar

from common.schema import Key, Scalar, SettingsError, setting

Scope = Literal["all", "backbone", "extractor", "none"]
T = TypeVar("T")
M = TypeVar("M", bound="MethodSettings")

HETEROGENEOUS: Final = "heterogeneous"
"""Value of ``model`` that gives client *i* the network CNN-((i mod 5) + 1)."""

EARLY_EXIT_MODELS: Final = ("convnet", "resnet18", "transformer")
SINGLE_EXIT_MODELS: Final = ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5")
TEXT_DATASETS: Final = ("agnews",)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the server needs to know about a run."""

    experiment: str = setting(
        "",
        "Name of the run: results go to `output-dir`/`experiment`, personal states to "
        "`state-dir`/`experiment`. Empty: made from method, data set and time.",
    )
    resume: bool = setting(
        False,
        "Go on after the last finished round of `experiment`, where there is one.",
    )
    checkpoint_every: int = setting(
        1, "Rounds between two checkpoints of the server; 0 keeps none.", minimum=0
    )
    checkpoints_kept: int = setting(2, "Checkpoints kept, the last ones.", minimum=1)
    state_dir: str = setting(
        "",
        "Folder for the clients' personal states where a node names none: lets a "
        "simulation be resumed.",
    )
    output_dir: str = setting("runs", "Folder for results, relative to the server.")
    tensorboard: bool = setting(
        False,
        "Write TensorBoard event files, too, to `tensorboard` in the folder for "
        "results; the server needs the extra `tensorboard`.",
    )
    num_server_rounds: int = setting(10, "Rounds T.", minimum=1)
    fraction_train: float = setting(
        1.0, "Fraction C of the clients that train in a round.", above=0, maximum=1
    )
    fraction_evaluate: float = setting(
        1.0, "Fraction of the clients that evaluate.", minimum=0, maximum=1
    )
    evaluate_every: int = setting(
        1, "Evaluate after every n-th round and after the last.", minimum=1
    )
    min_available_nodes: int = setting(
        2, "Clients that must be connected before a round starts.", minimum=1
    )
    wait_timeout: float = setting(
        600.0, "Longest wait for `min-available-nodes`, in seconds.", above=0
    )
    round_timeout: float = setting(
        3600.0, "Deadline of a round's training or evaluation, in seconds.", above=0
    )
    quorum: float = setting(
        0.0,
        "Fraction of the sampled clients whose valid replies a round needs to count; "
        "one reply is always needed.",
        minimum=0,
        maximum=1,
    )
    max_failed_rounds: int = setting(
        3, "Rounds in a row without quorum after which the run ends.", minimum=1
    )
    update_norm_bound: float = setting(
        0.0,
        "A client's update of a larger L2 norm is scaled down to this one, against "
        "poisoned updates; 0 switches that off.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """Local training, alike for every method."""

    local_epochs: int = setting(1, "Epochs E of local training per round.", minimum=1)
    batch_size: int = setting(64, "Batch size B.", minimum=1)
    learning_rate: float = setting(0.1, "Learning rate of round 1.", above=0)
    learning_rate_decay: float = setting(
        0.99, "Factor on the learning rate from round to round.", above=0, maximum=1
    )
    momentum: float = setting(0.9, "Momentum of SGD.", minimum=0, maximum=0.9999)
    weight_decay: float = setting(1e-4, "Weight decay of SGD.", minimum=0)
    max_grad_norm: float = setting(
        0.0, "Gradients are clipped to this norm; 0 switches clipping off.", minimum=0
    )
    optimizer_state: str = setting(
        "personal",
        "`personal`: each client keeps its momentum between rounds; `fresh`: it starts "
        "from zero every round.",
        choices=("personal", "fresh"),
    )
    batch_norm: str = setting(
        "shared",
        "`shared`: running statistics and weights of BatchNorm travel like other "
        "weights; `local`: they stay personal (FedBN).",
        choices=("shared", "local"),
    )
    confidence_threshold: float = setting(
        0.8,
        "Inference leaves at the first exit whose softmax reaches this confidence.",
        minimum=0,
        maximum=1,
    )
    evaluation_noise: float = setting(
        0.0,
        "Standard deviation of Gaussian noise on test images, pixels counting from 0 "
        "to 1; above 0, noisy images are evaluated too.",
        minimum=0,
        maximum=1,
    )
    precision: str = setting(
        "float32",
        "Arithmetic of training: `bfloat16` trains under autocast, faster on recent "
        "GPUs; weights, what travels and evaluation stay `float32`.",
        choices=("float32", "bfloat16"),
    )
    cpu_threads: int = setting(
        1,
        "Threads of one client on a CPU; 0 takes all cores. Results are bit-equal "
        "between machines only for equal numbers.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Which data, how it is split between clients, how it enters the network."""

    dataset: str = setting(
        "digits",
        "Data set; `custom` for data of the clients' own, described by `num-classes`, "
        "`image-size` and `channels`.",
        choices=(
            "digits",
            "cifar10",
            "cifar100",
            "fashion-mnist",
            "tinyimagenet",
            "agnews",
            "custom",
        ),
    )
    data_path: str = setting(
        "",
        "Folder with the data set (Parquet files, image folder or `.npz`), or with one "
        "folder per client; empty: download it. A node's own `data-path` goes first.",
    )
    cache_dir: str = setting(
        "", "Folder for decoded data; empty: `$XDG_CACHE_HOME/flower-personalized`."
    )
    partition: str = setting(
        "dirichlet",
        "How one data set is dealt out to the clients.",
        choices=("dirichlet", "pathological", "iid"),
    )
    dirichlet_alpha: float = setting(0.3, "Concentration of `dirichlet`.", above=0)
    classes_per_client: int = setting(2, "Classes of `pathological`.", minimum=1)
    min_partition_size: int = setting(
        10, "Samples that every client gets at least.", minimum=2
    )
    num_samples: int = setting(
        0, "Use a random part of the data set of this size; 0 takes all.", minimum=0
    )
    test_fraction: float = setting(
        0.25, "Part of a client's data held back for testing.", above=0, maximum=0.9
    )
    image_size: int = setting(
        0,
        "Height and width in pixels; images are resized to it. 0: the data set's own.",
        minimum=0,
    )
    channels: int = setting(
        0, "Colour channels, 1 or 3; 0: the data set's own.", minimum=0, maximum=3
    )
    num_classes: int = setting(0, "Classes; 0: the data set's own.", minimum=0)
    class_names: str = setting(
        "", "Names of the classes in order, comma separated, for labels that are text."
    )
    normalization: str = setting(
        "unit",
        "`unit`: pixels to [-1, 1]; `imagenet`: mean and standard deviation of "
        "ImageNet.",
        choices=("unit", "imagenet"),
    )
    augmentation: str = setting(
        "none",
        "Random changes of training images.",
        choices=("none", "crop-flip", "crop-flip-erase"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSettings:
    """Base of a method's own settings."""

    shares: ClassVar[Scope]
    """What a client uploads: the whole network, all but its exits, the extractor, or
    nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneSettings(MethodSettings):
    """Standalone (Local, Local-EE): nothing is shared."""

    shares: ClassVar[Scope] = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvgSettings(MethodSettings):
    """FedAvg (FedAvg-EE): the whole network is shared."""

    shares: ClassVar[Scope] = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class FedPerSettings(MethodSettings):
    """FedPer (FedPer-EE): all but the exits is shared."""

    shares: ClassVar[Scope] = "backbone"


@dataclass(frozen=True, slots=True, kw_only=True)
class PFedESSettings(MethodSettings):
    """pFedES (arXiv 2311.06879)."""

    shares: ClassVar[Scope] = "extractor"

    mu: float = setting(
        0.5, "Weight of the enhanced images in step 1.", above=0, maximum=0.5
    )
    extractor_epochs: int = setting(
        0, "Epochs E_fe of step 2; 0 takes `local-epochs`.", minimum=0
    )
    extractor_learning_rate: float = setting(
        0.0, "Learning rate of step 2; 0 takes `learning-rate`.", minimum=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class XFedSettings(MethodSettings):
    """X-FED (CIKM 2026)."""

    shares: ClassVar[Scope] = "backbone"

    mu: float = setting(0.6, "Regularisation of teacher matching (Sec. 4.3).", above=0)
    lambda_: float = setting(
        0.1, "Weight of distillation (Eq. 5); the paper: 1, AG News 0.2.", minimum=0
    )
    temperature: float = setting(2.0, "Temperature of distillation.", above=0)
    schedule: str = setting(
        "constant",
        "Growth of the student budget R(t) (Sec. 5.4.3); `constant`: every exit is a "
        "student in every round; the paper: `linear`.",
        choices=("linear", "constant", "quadratic", "logarithmic", "step"),
    )
    selection: str = setting(
        "conflict",
        "Which clients' next exit becomes a student: those that `conflict` least "
        "(Sec. 4.2), or `random` ones. No matter where `xfed.schedule` is `constant`.",
        choices=("conflict", "random"),
    )
    matching: str = setting(
        "similarity",
        "Weights of the teachers: by `similarity` (Sec. 4.3); `average`: equal ones; "
        "`own`: each client's own last exit alone.",
        choices=("similarity", "average", "own"),
    )
    teacher: str = setting(
        "frozen",
        "`frozen`: distil from the model as received (Eq. 9); `live`: from the own "
        "last exit as it trains.",
        choices=("frozen", "live"),
    )
    last_exit: str = setting(
        "own",
        "What the last exit starts from: the client's `own`, or the `aggregated` "
        "teacher.",
        choices=("own", "aggregated"),
    )
    kd_weight: str = setting(
        "paper",
        "Weight of distillation per exit: `paper` λ/m (Eq. 5), `reference` λ.",
        choices=("paper", "reference"),
    )
    evaluate_exit: str = setting(
        "own",
        "Last exit used in evaluation: the client's `own` or the `aggregated` teacher.",
        choices=("own", "aggregated"),
    )


METHOD_SETTINGS: Final[dict[str, type[MethodSettings]]] = {
    "standalone": StandaloneSettings,
    "fedavg": FedAvgSettings,
    "fedper": FedPerSettings,
    "pfedes": PFedESSettings,
    "xfed": XFedSettings,
}
"""Registry of the methods: name to settings class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a run."""

    method: str
    model: str
    seed: int
    run: RunSettings
    training: TrainingSettings
    data: DataSettings
    method_settings: MethodSettings

    @property
    def shares(self) -> Scope:
        """What the method shares."""
        return type(self.method_settings).shares

    def of(self, kind: type[M]) -> M:
        """Return the method's own settings, e.g. ``settings.of(XFedSettings).mu``."""
        assert isinstance(self.method_settings, kind)
        return self.method_settings

    def to_config(self) -> dict[str, Scalar]:
        """Return the flat mapping that :func:`parse_settings` reads."""
        config: dict[str, Scalar] = {
            "method": self.method,
            "model": self.model,
            "seed": self.seed,
        }
        for part in (self.run, self.training, self.data):
            config.update(_flatten(part))
        config.update(_flatten(self.method_settings, f"{self.method}."))
        return config


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralSettings:
    """Keys that stand in :class:`Settings` itself."""

    method: str = setting("xfed", "The algorithm.", choices=tuple(METHOD_SETTINGS))
    model: str = setting(
        "convnet",
        "Network of every client, or `heterogeneous` (client i gets "
        "CNN-((i mod 5)+1)), or `package.module:function` of your own. A node's own "
        "`model` goes first where the method allows different networks.",
    )
    seed: int = setting(
        0,
        "Fixes initial weights, partitions, sampling, batch order and dropout.",
        minimum=0,
        maximum=2**63 - 1,
    )


SECTIONS: Final[list[tuple[str, type[Any]]]] = [
    ("", GeneralSettings),
    ("", RunSettings),
    ("", TrainingSettings),
    ("", DataSettings),
    *((f"{name}.", cls) for name, cls in METHOD_SETTINGS.items()),
]
"""Prefix of the keys and the class that holds them."""


@cache
def keys() -> tuple[Key, ...]:
    """Return every key of the run configuration, in the order of the documentation."""
    return tuple(
        Key(prefix + field.name.rstrip("_").replace("_", "-"), section, field)
        for prefix, section in SECTIONS
        for field in fields(section)
    )


def completed(stored: Mapping[str, T]) -> dict[str, T | Scalar]:
    """Return a stored configuration with every setting that it lacks at its default.

    So a run of before a setting existed compares with one of today.
    """
    return {**{key.name: key.default for key in keys()}, **stored}


def _flatten(section: Any, prefix: str = "") -> dict[str, Scalar]:
    return {
        prefix + f.name.rstrip("_").replace("_", "-"): getattr(section, f.name)
        for f in fields(section)
    }


def parse_settings(config: Mapping[str, object]) -> Settings:
    """Parse and check a run configuration.

    Parameters
    ----------
    config
        Flat mapping as in ``context.run_config``; missing keys take their default.

    Raises
    ------
    SettingsError
        Names every unknown key, every value that is not allowed (with the allowed
        ones) and every pair of settings that contradict each other.
    """
    known = {key.name: key for key in keys()}
    problems = [f"unknown setting {k!r}" for k in config if k not in known]
    values: dict[type[Any], dict[str, Any]] = {section: {} for _, section in SECTIONS}
    for name, key in known.items():
        value = config.get(name, key.default)
        checked = key.check(value)
        if checked is None:
            problems.append(f"{name} = {value!r}: must be {key.allowed()}")
            checked = key.default
        values[key.section][key.field.name] = checked

    def build(section: type[T]) -> T:
        return section(**values[section])

    general = build(GeneralSettings)
    settings = Settings(
        method=general.method,
        model=general.model,
        seed=general.seed,
        run=build(RunSettings),
        training=build(TrainingSettings),
        data=build(DataSettings),
        method_settings=build(METHOD_SETTINGS[general.method]),
    )
    problems += _contradictions(settings)
    if problems:
        raise SettingsError(problems)
    return settings


def is_experiment_name(name: str) -> bool:
    """Tell whether a name can be that of an experiment: it becomes a folder's."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None


def check_model(model: str, settings: Settings) -> list[str]:
    """Return the problems with a client's `model` under a run's settings."""
    problems = []
    own = ":" in model
    named = (*EARLY_EXIT_MODELS, *SINGLE_EXIT_MODELS, HETEROGENEOUS)
    if not own and model not in named:
        problems.append(
            f"model = {model!r}: must be one of {', '.join(named)}, or "
            "'package.module:function' of your own"
        )
        return problems
    text = settings.data.dataset in TEXT_DATASETS
    if not own and text != (model == "transformer"):
        problems.append(
            f"model = {model!r} does not fit dataset = {settings.data.dataset!r}: text "
            "needs transformer, images need another"
        )
    if settings.shares in ("all", "backbone") and (own or model == HETEROGENEOUS):
        problems.append(
            f"model = {model!r}: {settings.method} averages networks, so all clients "
            "need the same built-in one; different networks work with pfedes and "
            "standalone"
        )
    if settings.method == "xfed" and model in SINGLE_EXIT_MODELS:
        problems.append(
            f"model = {model!r}: xfed needs an early-exit network, one of "
            f"{', '.join(EARLY_EXIT_MODELS)}"
        )
    return problems


def _contradictions(settings: Settings) -> list[str]:
    problems = check_model(settings.model, settings)
    name = settings.run.experiment
    if settings.run.resume and not name:
        problems.append("resume = true needs the name of the experiment to go on with")
    if name and not is_experiment_name(name):
        problems.append(
            f"experiment = {name!r}: use letters, digits, '.', '_' and '-' only, a "
            "letter or digit first"
        )
    data, method = settings.data, settings.method_settings
    if settings.method == "pfedes" and data.dataset in TEXT_DATASETS:
        problems.append(
            f"dataset = {data.dataset!r}: pfedes enhances images, it has no extractor "
            "for text"
        )
    if isinstance(method, XFedSettings) and (
        method.last_exit == "own" and method.teacher == "live"
    ):
        problems.append(
            "xfed.last-exit = 'own' needs xfed.teacher = 'frozen': a live teacher is "
            "the last exit itself, so it must start from the aggregated one"
        )
    if data.dataset == "custom":
        problems += [
            f"{name} = 0: dataset = 'custom' needs it"
            for name, value in (
                ("num-classes", data.num_classes),
                ("image-size", data.image_size),
                ("channels", data.channels),
            )
            if value == 0
        ]
        if data.augmentation != "none" and data.image_size and data.image_size < 8:
            problems.append("image-size: augmentation needs at least 8 pixels")
    if settings.training.evaluation_noise and data.dataset in TEXT_DATASETS:
        problems.append(
            f"evaluation-noise: dataset = {data.dataset!r} is text, noise is for images"
        )
    if data.num_classes == 1:
        problems.append("num-classes = 1: must be at least 2, or 0 for the data set's")
    if data.channels == 2:
        problems.append("channels = 2: must be 1 or 3, or 0 for the data set's own")
    names = [n for n in data.class_names.split(",") if n.strip()]
    if names and data.num_classes and len(names) != data.num_classes:
        problems.append(
            f"class-names has {len(names)} names but num-classes = {data.num_classes}"
        )
    return problems


if __name__ == "__main__":
    from common.schema import documentation

    print(documentation(keys()))

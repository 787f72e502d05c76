"""What a network and the server must know of a data set, without loading it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from common.settings import DataSettings

VOCABULARY: Final = 32_000
"""Size of the vocabulary of text (X-FED, CIKM 2026, Sec. 5.1)."""

PADDING_ID: Final = 0
"""Token id that fills up short texts."""


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Shape and classes of the examples.

    Parameters
    ----------
    kind
        Images or text.
    shape
        Of one example: (channels, height, width) of images, (tokens,) of text.
    num_classes
        Labels are 0 to ``num_classes - 1``.
    vocabulary
        Upper bound of the token ids; 0 for images.
    """

    kind: Literal["image", "text"]
    shape: tuple[int, ...]
    num_classes: int
    vocabulary: int = 0


KNOWN: Final[dict[str, DataSpec]] = {
    "digits": DataSpec("image", (1, 8, 8), 10),
    "cifar10": DataSpec("image", (3, 32, 32), 10),
    "cifar100": DataSpec("image", (3, 32, 32), 100),
    "fashion-mnist": DataSpec("image", (1, 28, 28), 10),
    "tinyimagenet": DataSpec("image", (3, 64, 64), 200),
    "agnews": DataSpec("text", (200,), 4, VOCABULARY),
    "custom": DataSpec("image", (0, 0, 0), 0),
}
"""Every data set as it comes; ``custom`` has to be described by the settings."""


def given_class_names(settings: DataSettings) -> tuple[str, ...]:
    """Return the names of ``class-names`` in order; empty where there are none."""
    names = (name.strip() for name in settings.class_names.split(","))
    return tuple(name for name in names if name)


def data_spec(settings: DataSettings) -> DataSpec:
    """Describe the examples that :func:`common.data.load_client_data` returns.

    The settings ``image-size``, ``channels`` and ``num-classes`` go before what is
    known of the data set; without ``num-classes`` the number of ``class-names`` counts.

    Raises
    ------
    ValueError
        If settings of images are given for text, or a custom data set is not fully
        described.
    """
    known = KNOWN[settings.dataset]
    num_classes = (
        settings.num_classes or len(given_class_names(settings)) or known.num_classes
    )
    if known.kind == "text":
        if settings.image_size or settings.channels:
            raise ValueError(
                f"dataset = {settings.dataset!r} is text, but image-size = "
                f"{settings.image_size} and channels = {settings.channels} describe "
                "images: leave both at 0"
            )
        return replace(known, num_classes=num_classes)
    channels, height, width = known.shape
    shape = (
        settings.channels or channels,
        settings.image_size or height,
        settings.image_size or width,
    )
    if not (num_classes and all(shape)):
        raise ValueError(
            f"dataset = {settings.dataset!r} needs num-classes, image-size and "
            f"channels, got num-classes = {num_classes}, image-size = "
            f"{settings.image_size}, channels = {settings.channels}"
        )
    return DataSpec("image", shape, num_classes)

"""Early-exit networks, and what of a network a client shares."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from torch import Tensor, nn

from common.models.extractor import Extractor
from common.settings import Scope

BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_EXITS = "exits."


class GlobalAveragePool(nn.Module):
    """Mean over a map's pixels: (N, channels, height, width) to (N, channels).

    The bits of ``AdaptiveAvgPool2d(1)`` and ``Flatten``, at half of their time for one
    sample.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the means."""
        if x.requires_grad:
            # The same bits, and a gradient in channels-last like x: in another layout
            # adding it to the next block's takes twice as long.
            return x.permute(0, 2, 3, 1).mean(dim=(1, 2))
        return x.mean(dim=(2, 3))


class Network(nn.Module):
    """A network of m blocks, each followed by an exit.

    With m = 1 it is an ordinary network: a backbone and its classifier. Exit j is
    ``exits[j](pool(h_j))``, where h_j is what block j returns.

    Parameters
    ----------
    blocks
        The backbone φ in order; each block reads what the one before returns, the first
        reads the samples.
    exits
        The exits' classifiers h_1..h_m, one linear layer each (X-FED: personal).
    pool
        Layer without parameters in front of every classifier; it turns what any block
        returns into features (N, d).
    """

    def __init__(
        self, blocks: Iterable[nn.Module], exits: Iterable[nn.Linear], pool: nn.Module
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.exits = nn.ModuleList(exits)
        self.pool = pool
        assert len(self.blocks) == len(self.exits)

    @property
    def num_exits(self) -> int:
        """Number of exits m."""
        return len(self.exits)

    def forward(
        self, x: Tensor, exits: Collection[int] | None = None
    ) -> list[Tensor | None]:
        """Return the logits of the exits asked for.

        Parameters
        ----------
        x
            N samples: float32 images (N, channels, height, width) or integer token ids
            (N, tokens).
        exits
            Indices of the exits from 0; None stands for all. Other exits, and the
            blocks behind the deepest one asked for, are not computed.

        Returns
        -------
        list
            One entry per exit: float32 logits (N, num_classes), or None where the exit
            was not asked for.

        Raises
        ------
        ValueError
            If the network has no such exit.
        """
        wanted = set(range(self.num_exits) if exits is None else exits)
        if not wanted <= set(range(self.num_exits)):
            raise ValueError(
                f"exits = {sorted(wanted)}: this network has the exits 0 to "
                f"{self.num_exits - 1}"
            )
        logits: list[Tensor | None] = [None] * self.num_exits
        hidden = x
        for index in range(max(wanted, default=-1) + 1):
            hidden = self.blocks[index](hidden)
            if index in wanted:
                logits[index] = self.exits[index](self.pool(hidden))
        return logits


def logits_per_exit(network: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the logits of every exit of a network, built in or an operator's own.

    Parameters
    ----------
    network
        A :class:`Network`, or a module that returns logits (N, num_classes) and so
        counts as having one exit.
    x
        N samples.

    Returns
    -------
    list
        Float logits (N, num_classes) per exit.

    Raises
    ------
    ValueError
        If an operator's own module returns anything else.
    """
    if isinstance(network, Network):
        return [logits for logits in network(x) if logits is not None]
    logits = network(x)
    if not isinstance(logits, Tensor):
        raise ValueError(
            f"{type(network).__name__} returned {type(logits).__name__}: forward must "
            "return one tensor of logits (samples, classes)"
        )
    if logits.ndim != 2 or len(logits) != len(x) or not logits.is_floating_point():
        raise ValueError(
            f"{type(network).__name__} returned {logits.dtype} of shape "
            f"{tuple(logits.shape)} for {len(x)} samples: forward must return floating-"
            f"point logits of shape ({len(x)}, classes)"
        )
    return [logits]


def shared_keys(
    network: nn.Module, scope: Scope, batch_norm: str = "shared"
) -> tuple[str, ...]:
    """Return the names of the ``state_dict`` entries that a client uploads.

    Integer entries (``num_batches_tracked``) are never shared: they have no mean.

    Parameters
    ----------
    network
        The network, or for scope ``"extractor"`` the extractor.
    scope
        ``"all"``: every entry; ``"backbone"``: all but the exits; ``"extractor"``:
        every entry of an extractor; ``"none"``: nothing.
    batch_norm
        ``"shared"``: BatchNorm layers are treated like others; ``"local"``: their
        weights, biases and running statistics stay on the client (FedBN).

    Returns
    -------
    tuple
        Names in the order of ``state_dict``.

    Raises
    ------
    ValueError
        If `network` has no part that `scope` names, so that a personal network is never
        shared by mistake, or if `batch_norm` is neither of its values.
    """
    if batch_norm not in ("shared", "local"):
        raise ValueError(f"batch_norm = {batch_norm!r}: must be 'shared' or 'local'")
    if scope == "none":
        return ()
    if scope == "backbone" and not isinstance(network, Network):
        raise ValueError(
            f"{type(network).__name__} has no exits to tell from a backbone: scope "
            "'backbone' needs a common.models.Network"
        )
    if scope == "extractor" and not isinstance(network, Extractor):
        raise ValueError(
            f"{type(network).__name__} is no extractor: scope 'extractor' needs a "
            "common.models.Extractor; a private network is never shared"
        )
    local = tuple(
        f"{name}."
        for name, module in network.named_modules(remove_duplicate=False)
        if batch_norm == "local" and isinstance(module, BATCH_NORM)
    )
    if scope == "backbone":
        local += (_EXITS,)
    return tuple(
        key
        for key, value in network.state_dict().items()
        if value.is_floating_point() and not key.startswith(local)
    )


def last_exit_keys(network: Network) -> tuple[str, ...]:
    """Return the ``state_dict`` names of the last exit's classifier h_m.

    For three exits these are ``("exits.2.weight", "exits.2.bias")``.
    """
    prefix = f"{_EXITS}{network.num_exits - 1}."
    return tuple(key for key in network.state_dict() if key.startswith(prefix))

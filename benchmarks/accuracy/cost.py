"""Multiply-accumulates of local training.

A forward pass through a network costs f multiply-accumulates per sample, its backward
pass 2f: f for the gradients of the weights and f for those of the layers' inputs. (The
first layer's input needs no gradient; that small part is counted nevertheless, for all
methods alike.) With E local epochs a sample costs a client in one round

- standalone, FedAvg, FedPer: 3·E·f;
- pFedES (arXiv 2311.06879), g being a forward pass through the extractor G: step 1
  passes the sample through G without gradients, and both it and its enhanced twin
  through F_k forward and back, E·(g + 6f); step 2 trains G through the frozen F_k, of
  which only the gradients of its inputs are needed, E_fe·(3g + 2f).
"""

from __future__ import annotations

from common.data import data_spec
from common.models import build_extractor
from common.models.macs import count_macs
from common.settings import PFedESSettings, Settings


def training_macs(settings: Settings, forward: float) -> float:
    """Return the multiply-accumulates of one round's training per training sample.

    Parameters
    ----------
    settings
        Settings of the run.
    forward
        Multiply-accumulates f of a forward pass through all of the client's network.

    Raises
    ------
    ValueError
        The method's cost is not known here: X-FED's depends on the exits selected.
    """
    epochs = settings.training.local_epochs
    if settings.method in ("standalone", "fedavg", "fedper"):
        return 3 * epochs * forward
    if settings.method != "pfedes":
        raise ValueError(
            f"the training cost of {settings.method!r} is not known: ask for the cost "
            "of standalone, fedavg, fedper or pfedes"
        )
    spec = data_spec(settings.data)
    (extractor,) = count_macs(build_extractor(spec, seed=0), spec)
    extractor_epochs = settings.of(PFedESSettings).extractor_epochs or epochs
    first = epochs * (extractor + 6 * forward)
    return first + extractor_epochs * (3 * extractor + 2 * forward)

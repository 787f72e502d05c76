"""What every method has in common on the client.

A method subclasses :class:`Trainer`. Those that train one network with a loss of their
own override :meth:`~Trainer.loss` or :meth:`~Trainer.train`; plain joint training of
whatever the method shares needs nothing more than the class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from logging import DEBUG, INFO

import torch
from flwr.common.logger import log
from torch import Tensor, nn

from client_app.assemble import personal_network, shared_names
from client_app.batches import Batch, LocalData
from client_app.evaluation import BATCH_SIZE, evaluate, latency
from client_app.footprint import COPIES, Footprint, Plan, footprint
from client_app.losses import network_loss
from client_app.memory import free_memory
from client_app.personal_state import PersonalState
from client_app.training import train
from common.data import ClientData, Split
from common.models import build_network
from common.protocol import LATENCY, NUM_EXAMPLES, TRAIN_LOSS, Reply, Request
from common.seeding import derive_seed
from common.settings import Settings
from common.sharing import keys_to_share
from common.state import State, read_state

_FOOTPRINTS: dict[tuple[object, ...], Footprint] = {}
"""What this process has measured: in a simulation it trains many clients."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who trains here, with what."""

    name: str
    model: str
    data: ClientData
    device: torch.device


class Trainer:
    """Local half of a method: trains and evaluates one client's personal network.

    Parameters
    ----------
    settings
        Settings of the run.
    client
        The client's name, model, data and device.
    """

    def __init__(self, settings: Settings, client: Client) -> None:
        self.settings = settings
        self.client = client
        self._network: nn.Module | None = None

    # ---- what a method may override ------------------------------------------------

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of one batch: joint cross-entropy over the exits."""
        return network_loss(network, batch.inputs, batch.targets)

    def heaviest_loss(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return a loss that keeps as much for its gradient as any in training.

        For the estimate of memory; nothing has come from the server yet.
        """
        return network_loss(network, batch.inputs, batch.targets)

    def train(
        self, request: Request, state: PersonalState | None
    ) -> tuple[Reply, PersonalState]:
        """Train for one round; return what goes up and what stays here."""
        network = self.network(request, state)
        loss, momentum = self.fit(
            network, lambda batch: self.loss(network, batch), request, state
        )
        new_state = self.remember(network, momentum, request, state)
        return self.reply(network, loss), new_state

    def evaluate(self, request: Request, state: PersonalState | None) -> Reply:
        """Evaluate the personal network on the client's test data."""
        return self.evaluation(self.network(request, state), request)

    # ---- parts for methods -----------------------------------------------------------

    def evaluation(self, network: nn.Module, request: Request) -> Reply:
        """Make the reply to ``evaluate``: accuracies per exit and of leaving early.

        After the last round the latency on this device comes with it.
        """
        training, seed = self.settings.training, self.settings.seed
        threshold = training.confidence_threshold
        network.eval()
        metrics = evaluate(
            network,
            self.test_data,
            threshold,
            batch_size=self.inference_batch,
            noise=training.evaluation_noise,
            seed=derive_seed(seed, "noise", self.client.name),
        )
        if request.server_round == self.settings.run.num_server_rounds:
            metrics[LATENCY] = latency(network, self.test_data, threshold)
        return Reply(metrics=metrics)

    def network(self, request: Request, state: PersonalState | None) -> nn.Module:
        """Build the client's network: shared parameters as received, the rest its own.

        Before the first training the personal part has the initial weights, equal for
        all clients of one architecture and seed.
        """
        network = personal_network(
            self.settings,
            self.client.data.spec,
            self.client.model,
            request.shared,
            state.part("model") if state else None,
        )
        self._network = self.place(network)
        return self._network

    @cached_property
    def plan(self) -> Plan | None:
        """How the network that was built fits into memory; None where nobody knows."""
        return self._plan(self._network) if self._network is not None else None

    def first_plan(self) -> Plan | None:
        """Plan before there is a network, with one that has the same shapes."""
        return self._plan(None, copies=COPIES)

    def _plan(self, network: nn.Module | None, **options: int) -> Plan | None:
        client, spec = self.client, self.client.data.spec
        free = free_memory(client.device)
        if free is None:
            return None
        if client.device.type != "cpu":  # the data are still to come there
            free -= client.data.train.inputs.nbytes
        training = network is not None and network.training
        key = (type(self), client.model, spec, training)
        if key not in _FOOTPRINTS:
            if network is None:
                network = self.place(build_network(client.model, spec, seed=0)).eval()
            _FOOTPRINTS[key] = footprint(
                network,
                lambda batch: self.heaviest_loss(network, batch),
                spec,
                client.device,
            )
        needs = _FOOTPRINTS[key]
        batch = min(self.settings.training.batch_size, len(client.data.train))
        return Plan(client.model, needs, free, batch, **options)

    @property
    def inference_batch(self) -> int:
        """Samples that inference takes at once."""
        if self.plan is None or self.plan.whole:
            return BATCH_SIZE
        return max(1, min(BATCH_SIZE, self.plan.portion))

    def _portion(self) -> int | None:
        """Return how many samples a step takes at once; None for whole batches."""
        if self.plan is None:
            return None
        self.plan.check()
        whole = self.plan.whole
        log(DEBUG if whole else INFO, "Client %s: %s", self.client.name, self.plan)
        return None if whole else self.plan.portion

    def place(self, module: nn.Module) -> nn.Module:
        """Move a module to the training device, convolutions in channels-last."""
        return module.to(self.client.device).to(memory_format=torch.channels_last)

    @cached_property
    def training_data(self) -> LocalData:
        """The client's training data on the training device."""
        return self._local(self.client.data.train)

    @cached_property
    def test_data(self) -> LocalData:
        """The client's test data on the training device."""
        return self._local(self.client.data.test)

    def _local(self, split: Split) -> LocalData:
        spec, device = self.client.data.spec, self.client.device
        return LocalData(split, spec, self.settings.data, device)

    def fit(
        self,
        module: nn.Module,
        loss: Callable[[Batch], Tensor],
        request: Request,
        state: PersonalState | None,
        *,
        purpose: str = "network",
        epochs: int | None = None,
        learning_rate: float | None = None,
    ) -> tuple[float, State]:
        """Train a module with the run's settings and the client's own random numbers.

        Parameters
        ----------
        purpose
            Name of what is trained; momentum and random numbers go by it.
        epochs, learning_rate
            In place of ``local-epochs`` and ``learning-rate`` (round 1).

        Returns
        -------
        Mean loss, and momentum by ``<purpose>.<parameter>``; the latter is empty where
        the optimizer state is fresh every round.
        """
        portion = self._portion()
        training = self.settings.training
        personal = training.optimizer_state == "personal"
        seed = derive_seed(
            self.settings.seed, purpose, self.client.name, request.server_round
        )
        torch.manual_seed(seed)
        decay = training.learning_rate_decay ** (request.server_round - 1)
        mean_loss, momentum = train(
            module.train(),
            self.training_data,
            loss,
            training,
            epochs=epochs or training.local_epochs,
            learning_rate=(learning_rate or training.learning_rate) * decay,
            momentum=state.part(f"momentum.{purpose}") if state and personal else {},
            generator=torch.Generator().manual_seed(seed),
            portion=portion,
        )
        if not personal:
            return mean_loss, {}
        return mean_loss, {f"{purpose}.{name}": b for name, b in momentum.items()}

    def reply(
        self, module: nn.Module, loss: float, groups: dict[str, State] | None = None
    ) -> Reply:
        """Make the reply to ``train``: the shared part of `module`, n_k, the loss."""
        return Reply(
            shared=read_state(module, keys_to_share(module, self.settings)),
            groups=groups or {},
            metrics={NUM_EXAMPLES: len(self.client.data.train), TRAIN_LOSS: loss},
        )

    def remember(
        self,
        network: nn.Module,
        momentum: State,
        request: Request,
        state: PersonalState | None,
    ) -> PersonalState:
        """Make the new personal state: all of the network that is not shared."""
        shared = shared_names(network, self.settings)
        personal = [key for key in network.state_dict() if key not in shared]
        model = read_state(network, personal)
        return PersonalState(
            method=self.settings.method,
            model=self.client.model,
            run=request.run,
            server_round=request.server_round,
            rounds_trained=(state.rounds_trained if state else 0) + 1,
            arrays={
                **{f"model.{key}": value for key, value in model.items()},
                **{f"momentum.{key}": value for key, value in momentum.items()},
            },
        )

"""The client's part of a round, in this process, in a worker, or at a site."""

from __future__ import annotations

import math
import time

import torch
from torch import nn

from fedssl.config import Config
from fedssl.data.federation import Federation
from fedssl.data.views import Views
from fedssl.engines.device import find_device, multiplies_bf16
from fedssl.engines.measurements import measurement
from fedssl.engines.memory import MemoryStore
from fedssl.engines.network import Network
from fedssl.engines.recalibration import measure, some_views, statistics_of
from fedssl.engines.tasks import Outcome, Question, Task
from fedssl.engines.tools import server_tools
from fedssl.errors import ConfigError, FedsslError, RunError
from fedssl.methods.boundary import Boundary
from fedssl.methods.client import Client, ClientFailure
from fedssl.methods.method import ENCODER
from fedssl.methods.training import Training
from fedssl.models.model import Model
from fedssl.privacy.canary import Canaries
from fedssl.privacy.example import check_model, example_trainer
from fedssl.privacy.guard import ExampleGuard, Guard
from fedssl.privacy.layout import Layout
from fedssl.privacy.protector import Protector
from fedssl.privacy.refusals import check_canaries, check_terms
from fedssl.privacy.secure.client import Refused
from fedssl.privacy.secure.server import Answer
from fedssl.privacy.terms import Terms
from fedssl.rng import derive, numpy_rng
from fedssl.state import (
    Broadcast,
    ClientMemory,
    ServerState,
    State,
    Upload,
    layer_distances,
    snapshot,
)
from fedssl.threads import with_threads


class ClientRunner:
    """Runs clients on one model, whose tensors it swaps."""

    def __init__(
        self, config: Config, federation: Federation, network: Network, memories: MemoryStore
    ) -> None:
        self.config, self.federation, self.memories = config, federation, memories
        self.device = find_device(config.device)
        if config.train.precision == "bf16" and self.device.type == "cpu" and not multiplies_bf16():
            raise ConfigError(
                "train.precision=bf16: this processor has no instructions for bfloat16 that PyTorch "
                "knows (AVX-512 BF16 or AMX), so it would be slower; use fp32"
            )
        self.model: Model = network.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network, self.initial = network, network.initial
        self.features = network.encoder.features
        data, objective = config.data, config.objective
        self.views = Views.of(
            federation.train, config.views, objective.views, data.mean, data.std, objective.num_views
        )
        self.boundary = Boundary.of(config.method, self.model)
        self.uploads = frozenset(self.boundary.travels)
        self._frozen = {name: self.initial[name] for name in self.boundary.frozen}
        self.statistics = self.model.statistics() & self.uploads
        self.encoder_parameters = [
            name for name in self.model.parameters_under(ENCODER) if name in self.uploads
        ]
        self.recalibrated = statistics_of(self.statistics)
        self.backbone = [name for name in self.encoder_parameters if name.startswith("encoder.")]
        self.canaries = Canaries(config.seed, federation.clients, config.privacy.canaries)
        self.protector = Protector(config, self._terms(), memories.folder) if config.privacy.on else None

    def _terms(self) -> Terms:
        """The parameters that server and clients share if uploads are only summed."""
        layout = Layout.of({name: self.initial[name] for name in self.boundary.travels}, self.statistics)
        clients, participation = self.canaries.total, self.config.participation
        per_round = participation.size(clients)
        return Terms(self.config.privacy, layout, clients, per_round, participation.max_images)

    def guard(self) -> Guard:
        """The server's side of the run's privacy settings."""
        if self.protector is not None:
            return self.protector.guard()
        privacy = self.config.privacy
        return ExampleGuard(privacy.epsilon) if privacy.by_example else Guard()

    def check_privacy(self) -> None:
        """Raise a ConfigError if the privacy settings are incompatible with method or model."""
        if self.config.privacy.by_example:
            check_model(self.config, self.model)
        if self.protector is None and not self.canaries.count:
            return
        first = self.first_server()
        if self.canaries.count:
            check_canaries(self.config, bool(self.boundary.travels), bool(first.clusters))
        if self.protector is not None:
            aggregate = self.config.method.aggregate(first, 1, server_tools(self.config, self.model))
            check_terms(self.config, self.protector.terms, aggregate, bool(first.clusters))

    def first_server(self) -> ServerState:
        """The server state before round 1: the initial values of shared tensors."""

        def shared(values: State) -> State:
            return {name: values[name] for name in self.boundary.travels}

        def another(number: int) -> State:
            return shared(self.network.another(number))

        return self.config.method.first_server(shared(self.initial), another)

    def run(self, task: Task) -> Outcome:
        """Receive, train, upload. Failures of a client are part of the outcome; FedsslErrors are raised."""
        began = time.monotonic()
        try:
            with torch.random.fork_rng(devices=[]), with_threads(task.threads):
                self._seed(task)
                outcome = measurement(self, task) if task.measure else self._run(task, began)
        except FedsslError:
            raise
        except ClientFailure as failure:
            outcome = Outcome(task.client, failure=str(failure))
        except Exception as error:
            outcome = Outcome(task.client, failure=f"{type(error).__name__}: {error}")
        outcome.seconds = time.monotonic() - began
        return outcome

    def answer(self, question: Question) -> Answer:
        """A client's part of one exchange of secure aggregation."""
        assert self.protector is not None
        client = self.protector.secure_client(question.client, question.round)
        try:
            return Answer(question.client, client.answer(question.stage, question.data))
        except Refused as refused:
            return Answer(question.client, failure=str(refused))

    def client(self, task: Task, deadline: float = float("inf")) -> Client:
        config = self.config
        return Client(
            id=task.client,
            round=task.round,
            rounds=config.rounds,
            seed=config.seed,
            model=self.model,
            objective=config.objective,
            images=self.federation.images_of(self.canaries.image_owner(task.client), config, task.round),
            views=self.views,
            config=config.train,
            device=self.device,
            initial=self.initial,
            deadline=deadline,
            uploads=self.uploads,
        )

    def receive(self, task: Task) -> Model:
        """The model that a client trains or uses after it has received a task: its personal model."""
        client = self.client(task)
        self._receive(client, task)
        return client.model

    def adapt(self, task: Task, epochs: float) -> Model:
        """Receive a task, and train for `epochs` with the learning rate of the last round."""
        with torch.random.fork_rng(devices=[]):
            self._seed(task)
            client = self.client(task)
            self._receive(client, task)
            client.round = self.config.rounds
            client.config = client.config.model_copy(update={"epochs": epochs})
            try:
                self.config.method.train(client)
            except ClientFailure as failure:
                raise RunError(f"client {task.client} cannot be trained: {failure}") from failure
        return self.model

    def _seed(self, task: Task) -> None:
        """Seed PyTorch's global generators, for dropout and layers that a method builds."""
        seed = derive(self.config.seed, task.round, task.client, "global")
        if self.device.type == "cpu":
            # torch.manual_seed also notes the seed, with a stack trace, for a GPU that may never be used.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _receive(self, client: Client, task: Task) -> dict[str, float]:
        """Load the client's memory, call the method's `receive`, and set `client.received`."""
        method, memory = self.config.method, self.memories.load(task.client, task.memory_round)
        broadcast = self._complete(task.broadcast, memory.state)
        client.notes = dict(memory.values)
        own = {**self._frozen, **memory.state} if memory.state else {}
        log = method.receive(client, broadcast, own)
        client.received = method.reference_model(client, broadcast)
        return log

    def _complete(self, broadcast: Broadcast, memory: State) -> Broadcast:
        """Add tensors that are not sent: frozen ones, and normalization layers that stay on the client.

        Methods therefore always see complete models.
        """
        if not self.boundary.private_norm and not self._frozen:
            return broadcast
        norm = {name: memory.get(name, self.initial[name]) for name in self.boundary.private_norm}
        return broadcast.map(lambda model: {**self._frozen, **model, **norm})

    def measured(self, client: int, encoder: nn.Module, by_batch: bool = True) -> State:
        """Statistics of an encoder on one client's images."""
        at = self.client(Task(self.config.rounds + 1, client, Broadcast()))
        if len(at.images) == 0:
            raise ClientFailure("has no images")
        return measure(encoder, some_views(at, self.federation.clients), by_batch)

    def _run(self, task: Task, began: float) -> Outcome:
        config = self.config
        rate = config.participation.failure_rate
        if rate and numpy_rng(config.seed, task.round, task.client, "failure").random() < rate:
            raise ClientFailure("simulated failure (participation.failure_rate)")
        client = self.client(task, began + (config.participation.timeout or float("inf")))
        if len(client.images) == 0:
            raise ClientFailure("has no images")
        log = self._receive(client, task)
        training = self._train(client)
        log = {**log, **training.values}
        travels, stays = self.boundary.travels, self.boundary.stays
        remembers = bool(stays or client.notes)
        copies = snapshot(self.model, dict.fromkeys([*travels, *stays]))
        copies = {name: value.cpu() for name, value in copies.items()}
        state = {name: copies[name] for name in travels}
        received = {name: client.received[name] for name in travels}
        if self.canaries.includes(client.id):
            clip = self.protector.clip(task.broadcast.values) if self.protector is not None else None
            state = self.canaries.upload(client.id, received, state, self.statistics, clip)
        if self.encoder_parameters:
            apart = layer_distances(client.received, state, self.encoder_parameters)
            log["divergence"] = math.hypot(*apart.values())
            # d_w of Dec-SSL, §B.3: the sum over layers, of the backbone, which all objectives have.
            log["drift"] = sum(apart[name] for name in self.backbone)
        if remembers:
            kept = {name: copies[name] for name in stays}
            self.memories.save(task.client, task.round, ClientMemory(kept, client.notes))
        upload = Upload(task.client, state, len(client.images), training.loss, log)
        views = 0 if self.protector is not None else training.views
        upload = self.protect(upload, received, task, training.views)
        return Outcome(task.client, upload, views=views, remembers=remembers)

    def protect(self, upload: Upload, received: State, task: Task, views: int) -> Upload:
        """Apply the run's privacy settings, or a client-side rule, to an upload.

        Args:
            upload: the client's upload.
            received: the same tensors of the model that it received.
            task: the client's task.
            views: number of views that it was trained on.
        """
        if self.protector is not None:
            return self.protector.protect(upload, received, task.round, task.broadcast.values, views)
        return self.config.aggregation.on_client(received, upload, self.statistics, task.round)

    def _train(self, client: Client) -> Training:
        """Train with the method; with `privacy.mode=example`, with noise on every image's gradient."""
        config = self.config
        if not config.privacy.by_example:
            return config.method.train(client)
        return example_trainer(config, self.memories.folder, client.id, client.round).train(client)

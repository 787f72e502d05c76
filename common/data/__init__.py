"""Data of the clients: where they come from and how they enter the network."""

from common.data.loading import ClientData, Split, load_client_data
from common.data.spec import DataSpec, data_spec
from common.data.transforms import add_noise, augment, to_model_input

__all__ = [
    "ClientData",
    "DataSpec",
    "Split",
    "add_noise",
    "augment",
    "data_spec",
    "load_client_data",
    "to_model_input",
]

"""tensors -> parameters: a snapshot's files read into named parameters, or refused by name."""

from labkit.checkpoint.read import Mode as Mode
from labkit.checkpoint.read import read_checkpoint as read_checkpoint
from labkit.checkpoint.records import Checkpoint as Checkpoint
from labkit.checkpoint.records import LoadReport as LoadReport
from labkit.checkpoint.records import TensorRow as TensorRow
from labkit.checkpoint.statistics import add_statistics as add_statistics

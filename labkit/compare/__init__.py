"""How far two arrays lie apart, said in float64: ``actual`` first, ``expected`` second, everywhere."""

from labkit.compare.difference import Difference as Difference
from labkit.compare.difference import measure as measure

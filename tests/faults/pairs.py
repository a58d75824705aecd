"""`--import tests.faults.pairs` registers each pair of a core and an auxiliary task as a method."""

from kstep import register_method
from tests.pairs import PAIRS, declared

for name in PAIRS:
    register_method(declared(name))

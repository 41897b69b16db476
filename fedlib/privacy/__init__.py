"""What a server can infer about its clients, and whether opting out keeps its promise."""

from fedlib.privacy.accounting import epsilon
from fedlib.privacy.hiding import NoisyFedMix, leak_behind_noise, leak_of_sums
from fedlib.privacy.labels import audit, total_variation
from fedlib.privacy.opting import Trace, tampered, trace

"""What a server can infer about its clients, and what noise buys."""

from fedlib.privacy.accounting import epsilon
from fedlib.privacy.hiding import NoisyFedMix
from fedlib.privacy.labels import audit, total_variation
from fedlib.privacy.parts import PartsAudit

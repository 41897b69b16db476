"""What a server can infer about its clients, and whether opting out keeps its promise."""

from fedlib.privacy.hiding import NoisyFedMix as NoisyFedMix
from fedlib.privacy.hiding import leak_behind_noise as leak_behind_noise
from fedlib.privacy.hiding import leak_of_sums as leak_of_sums
from fedlib.privacy.labels import audit as audit
from fedlib.privacy.labels import from_marginal as from_marginal
from fedlib.privacy.labels import from_rows as from_rows
from fedlib.privacy.labels import from_step as from_step
from fedlib.privacy.labels import from_update as from_update
from fedlib.privacy.labels import set_from_rows as set_from_rows
from fedlib.privacy.labels import total_variation as total_variation
from fedlib.privacy.opting import Trace as Trace
from fedlib.privacy.opting import tampered as tampered
from fedlib.privacy.opting import trace as trace

"""Privacy: what messages reveal about clients, and how much noise protects them."""

from fedlib.privacy.accounting import epsilon
from fedlib.privacy.labels import audit, total_variation
from fedlib.privacy.parts import PartsAudit

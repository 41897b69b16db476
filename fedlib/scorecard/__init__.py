"""Every published number and every claim beside what was measured: `make report`."""

from fedlib.scorecard.collected import collected
from fedlib.scorecard.exhibits import EXHIBITS, Exhibit
from fedlib.scorecard.files import write
from fedlib.scorecard.joined import numbers
from fedlib.scorecard.judge import VERDICTS, judged

__all__ = ["EXHIBITS", "VERDICTS", "Exhibit", "collected", "judged", "numbers", "write"]

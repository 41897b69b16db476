"""Every published number and every claim beside what was measured: `make report`."""

from companion.scorecard.collected import collected
from companion.scorecard.exhibits import EXHIBITS, Exhibit
from companion.scorecard.files import write
from companion.scorecard.joined import numbers
from companion.scorecard.judge import VERDICTS, judged

__all__ = ["EXHIBITS", "VERDICTS", "Exhibit", "collected", "judged", "numbers", "write"]
